//! Places in a list: whose turn it is, and who is brought to the front.

/// The place among `count` of whoever's turn it is, below `count`; 0 where there is none.
pub(super) fn of_turn(turn: u64, count: usize) -> usize {
    u64::try_from(count)
        .ok()
        .and_then(|count| turn.checked_rem(count))
        .and_then(|place| usize::try_from(place).ok())
        .unwrap_or(0)
}

/// Brings what is at `place` to the front; the others keep their order. Nothing happens where there is no such place.
pub(in crate::routing) fn to_front<T>(items: &mut [T], place: usize) {
    if let Some(head) = items.get_mut(..=place) {
        head.rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round() {
        let places: Vec<usize> = (0..5).map(|turn| of_turn(turn, 3)).collect();
        assert_eq!(places, [0, 1, 2, 0, 1]);
        assert_eq!(of_turn(u64::MAX, 1), 0);
        assert_eq!(of_turn(7, 0), 0);
    }

    #[test]
    fn one_is_brought_to_the_front() {
        let mut items = ['a', 'b', 'c', 'd'];
        to_front(&mut items, 2);
        assert_eq!(items, ['c', 'a', 'b', 'd']);
        to_front(&mut items, 4);
        assert_eq!(items, ['c', 'a', 'b', 'd']);
    }
}
