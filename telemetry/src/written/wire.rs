//! Protobuf on the wire (<https://protobuf.dev/programming-guides/encoding/>): fields written one by one, and how many bytes
//! they take, which goes before those of a message in a message.

use std::time::{SystemTime, UNIX_EPOCH};

/// How the value of a field is written.
#[derive(Clone, Copy)]
pub(super) enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Len = 2,
    Fixed32 = 5,
}

pub(super) fn put_moment(to: &mut Vec<u8>, number: u32, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    put_key(to, number, Wire::Fixed64);
    to.extend_from_slice(&nanos.to_le_bytes());
}

pub(super) fn put_bytes(to: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_len(to, number, bytes.len());
    to.extend_from_slice(bytes);
}

pub(super) fn put_len(to: &mut Vec<u8>, number: u32, len: usize) {
    put_key(to, number, Wire::Len);
    put_varint(to, wide(len));
}

pub(super) fn put_whole(to: &mut Vec<u8>, number: u32, value: u64) {
    put_key(to, number, Wire::Varint);
    put_varint(to, value);
}

pub(super) fn put_key(to: &mut Vec<u8>, number: u32, wire: Wire) {
    put_varint(to, u64::from(number << 3 | wire as u32));
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

/// Bytes of a field with so many.
pub(super) fn len_of_part(number: u32, len: usize) -> usize {
    len_of_key(number)
        .saturating_add(len_of_varint(wide(len)))
        .saturating_add(len)
}

pub(super) fn len_of_whole(number: u32, value: u64) -> usize {
    len_of_key(number).saturating_add(len_of_varint(value))
}

pub(super) fn len_of_key(number: u32) -> usize {
    len_of_varint(u64::from(number << 3))
}

fn len_of_varint(value: u64) -> usize {
    let bits = u64::BITS.saturating_sub((value | 1).leading_zeros());
    bits.div_ceil(7) as usize
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
