//! Hand-made histories: of each kind of violation one that has it, and its nearest neighbour that has not.

use rstest::rstest;

use super::*;

const RULES: Rules = Rules {
    horizon: ms(1_000),
    guard: ms(500),
    drain: ms(1_000),
    cut_late: ms(300),
    noticed_late: ms(50),
    unheard_late: ms(2_000),
    question: ms(100),
    recovery: ms(400),
    clocks: ms(20),
};
const TTL: u64 = 5_000;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn span((from, until): (u64, u64)) -> Span {
    Span::new(ms(from), ms(until))
}

/// A history in the making. Times are in ms; every lease lasts for [`TTL`].
#[derive(Default)]
struct Story(History);

impl Story {
    fn operation(mut self, owner: u8, asked: Asked, at: (u64, u64), answer: Answer) -> Self {
        self.0.operations.push(Operation {
            owner,
            asked,
            span: span(at),
            answer,
        });
        self
    }

    fn acquire(self, owner: u8, at: (u64, u64), answer: Answer) -> Self {
        self.operation(owner, Asked::Acquire { ttl: ms(TTL) }, at, answer)
    }

    /// Acquires; there is a row of it, which tells where but, at its very beginning, nothing of how long.
    fn holds(self, (owner, generation): (u8, u64), at: (u64, u64), connection: &str) -> Self {
        self.acquire(owner, at, Answer::Lease { generation }).row(
            (owner, generation),
            (at.1, at.1),
            connection,
        )
    }

    fn row(mut self, (owner, generation): (u8, u64), held: (u64, u64), connection: &str) -> Self {
        self.0.rows.push(Row {
            lease: LeaseName { owner, generation },
            connection: connection.to_owned(),
            held: span(held),
            ended: None,
        });
        self
    }

    /// Why the row that was added last ended.
    fn ended(mut self, reason: &str) -> Self {
        if let Some(last) = self.0.rows.last_mut() {
            last.ended = Some(reason.to_owned());
        }
        self
    }

    fn status(self, (owner, generation): (u8, u64), at: (u64, u64), answer: Answer) -> Self {
        self.operation(owner, Asked::Status { generation }, at, answer)
    }

    fn renew(self, (owner, generation): (u8, u64), at: (u64, u64), answer: Answer) -> Self {
        self.renew_for((owner, generation), TTL, at, answer)
    }

    fn renew_for(
        self,
        (owner, generation): (u8, u64),
        ttl: u64,
        at: (u64, u64),
        answer: Answer,
    ) -> Self {
        let ttl = ms(ttl);
        self.operation(owner, Asked::Renew { generation, ttl }, at, answer)
    }

    fn release(self, (owner, generation): (u8, u64), at: (u64, u64), answer: Answer) -> Self {
        self.operation(owner, Asked::Release { generation }, at, answer)
    }

    fn send(
        self,
        (owner, generation): (u8, u64),
        number: u64,
        at: (u64, u64),
        answer: Answer,
    ) -> Self {
        let asked = Asked::Send {
            generation,
            number,
            plane: 0,
        };
        self.operation(owner, asked, at, answer)
    }

    fn arrives(
        mut self,
        (owner, generation): (u8, u64),
        number: u64,
        at: (u64, u64),
        connection: &str,
    ) -> Self {
        self.0.arrivals.push(Arrival {
            number,
            lease: LeaseName { owner, generation },
            connection: connection.to_owned(),
            plane: 0,
            span: span(at),
            aborted: false,
        });
        self
    }

    /// The request that arrived last was left by its data plane.
    fn aborted(mut self) -> Self {
        if let Some(last) = self.0.arrivals.last_mut() {
            last.aborted = true;
        }
        self
    }

    fn fault(mut self, fault: Fault, at: (u64, u64)) -> Self {
        self.0.faults.push((fault, span(at)));
        self
    }

    /// The upstream did not run.
    fn asleep(mut self, at: (u64, u64)) -> Self {
        self.0.asleep.push(span(at));
        self
    }

    fn kinds(&self) -> Vec<Kind> {
        check(&self.0, &RULES)
            .into_iter()
            .map(|violation| violation.kind)
            .collect()
    }
}

fn story() -> Story {
    Story::default()
}

fn granted(generation: u64) -> Answer {
    Answer::Lease { generation }
}

const A: (u8, u64) = (1, 1);
const B: (u8, u64) = (2, 1);

#[rstest]
#[case::one_after_the_other(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).holds(B, (105, 120), "c"))]
#[case::after_an_expiry(story().holds(A, (0, 10), "c").holds(B, (4_990, 5_005), "c"))]
#[case::a_row_after_another(story().row(A, (0, 10), "c").row(B, (10, 20), "c"))]
#[case::on_two_connections(story().holds(A, (0, 10), "c").holds(B, (0, 10), "d"))]
#[case::a_release_without_an_answer(story()
    .holds(A, (0, 10), "c").release(A, (100, 1_000), Answer::Unknown).holds(B, (105, 120), "c"))]
#[case::given_back_as_it_was_asked_for(story()
    .acquire(1, (0, 10), granted(1)).row(A, (5, 100), "c").ended("OWNER_EXIT")
    .release(A, (119, 130), Answer::Unknown))]
#[case::it_ended_for_its_connections_sake(story()
    .acquire(1, (0, 10), granted(1)).row(A, (5, 5_000), "c").ended("HEALTH_OR_COOLDOWN"))]
#[case::shortened_by_a_renewal(story()
    .holds(A, (0, 10), "c").renew_for(A, 1_000, (100, 110), granted(1)).holds(B, (1_100, 1_200), "c"))]
#[case::shortened_by_a_renewal_that_nobody_heard_of(story()
    .holds(A, (0, 10), "c").renew_for(A, 1_000, (100, 110), Answer::Unknown)
    .holds(B, (1_090, 1_110), "c"))]
#[case::a_request_drains(story()
    .holds(A, (0, 10), "c").send(A, 1, (20, 1_000), Answer::Served).arrives(A, 1, (25, 990), "c")
    .release(A, (100, 110), granted(1)).holds(B, (995, 1_005), "c"))]
#[case::a_request_is_cut(story()
    .holds(A, (0, 10), "c").send(A, 1, (20, 1_120), Answer::Cut)
    .arrives(A, 1, (25, 1_120), "c").aborted().release(A, (100, 110), granted(1)))]
#[case::noticed_a_little_late(story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_120), "c").aborted()
    .release(A, (100, 110), granted(1)).holds(B, (1_080, 1_090), "c").arrives(B, 2, (1_095, 1_200), "c"))]
#[case::a_pause_excuses(story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 9_100), "c").aborted()
    .fault(Fault::Pause { plane: 0 }, (1_000, 9_000)).holds(B, (7_000, 7_010), "c"))]
#[case::cut_while_the_upstream_did_not_run(story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_900), "c").aborted().release(A, (100, 110), granted(1))
    .asleep((1_350, 1_840)))]
#[case::left_while_the_upstream_did_not_run(story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").aborted()
    .asleep((190, 490)).release(A, (100, 110), granted(1)).holds(B, (200, 210), "c")
    .arrives(B, 2, (495, 600), "c"))]
#[case::noticed_when_the_upstream_woke(story()
    .holds(A, (0, 10), "c").send(A, 1, (4_900, 5_100), Answer::Served).arrives(A, 1, (5_100, 5_200), "c")
    .asleep((4_950, 5_105)))]
#[case::sent_on_waking(story()
    .holds(A, (0, 10), "c").arrives(A, 1, (9_010, 9_100), "c").aborted()
    .fault(Fault::Pause { plane: 0 }, (1_000, 9_000)).holds(B, (7_000, 7_010), "c")
    .arrives(B, 2, (7_020, 9_200), "c"))]
#[case::nobody_heard_of_the_renewal_that_made_it_last(story()
    .holds(A, (0, 10), "c").renew(A, (4_000, 4_100), Answer::Unknown)
    .status(A, (8_000, 8_010), granted(1)).arrives(A, 1, (8_000, 8_010), "c"))]
#[case::an_old_one_is_denied(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).holds((1, 2), (200, 210), "c")
    .release(A, (300, 310), granted(1)).renew(A, (400, 410), Answer::Over))]
#[case::expired_and_denied(story()
    .holds(A, (0, 10), "c").renew(A, (4_990, 5_001), Answer::Over)
    .acquire(1, (5_100, 5_110), Answer::Busy))]
#[case::denied_in_the_last_part(story()
    .holds(A, (0, 10), "c").send(A, 1, (4_400, 4_600), Answer::Over))]
#[case::denied_by_a_data_plane_that_counts_from_before_it_asked(story()
    .holds(A, (0, 10), "c").send(A, 1, (4_300, 4_460), Answer::Over))]
#[case::denied_with_the_authority_away(story()
    .holds(A, (0, 10), "c").fault(Fault::Restart, (100, 600)).send(A, 1, (900, 950), Answer::Over))]
#[case::sent_by_a_grant_while_nobody_answered(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).fault(Fault::Restart, (120, 300))
    .send(A, 1, (150, 400), Answer::Served).arrives(A, 1, (160, 390), "c"))]
#[case::sent_by_a_grant_while_a_control_plane_stood_still(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).fault(Fault::Stop { replica: 0 }, (120, 300))
    .send(A, 1, (150, 400), Answer::Served).arrives(A, 1, (160, 390), "c"))]
#[case::sent_by_a_grant_at_the_end_of_its_horizon(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).fault(Fault::Restart, (120, 900))
    .send(A, 1, (1_109, 1_150), Answer::Served).arrives(A, 1, (1_110, 1_140), "c"))]
#[case::sent_while_the_machine_stood_still(story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).asleep((120, 300))
    .send(A, 1, (150, 400), Answer::Served).arrives(A, 1, (310, 390), "c"))]
#[case::denied_in_the_last_part_of_a_lease_that_was_extended_then(story()
    .holds(A, (0, 10), "c").send(A, 1, (4_500, 4_550), Answer::Over).renew(A, (4_600, 4_610), granted(1)))]
#[case::cut_with_the_authority_away(story()
    .holds(A, (0, 10), "c").fault(Fault::Stop { replica: 1 }, (100, 600)).send(A, 1, (900, 950), Answer::Cut))]
#[case::cut_by_a_data_plane_that_had_stood_still(story()
    .holds(A, (0, 10), "c").fault(Fault::Pause { plane: 0 }, (100, 200)).send(A, 1, (20, 250), Answer::Cut))]
#[case::cut_while_the_machine_stood_still(story()
    .holds(A, (0, 10), "c").asleep((100, 300)).send(A, 1, (20, 250), Answer::Cut))]
#[case::cut_when_its_lease_may_have_ended(story()
    .holds(A, (0, 10), "c").send(A, 1, (4_000, 5_001), Answer::Cut))]
#[case::it_moved_when_its_connection_cooled(story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900)).row(A, (10, 60), "c1")
    .row(A, (60, 4_000), "c2").send(A, 1, (50, 100), Answer::Served).arrives(A, 1, (70, 90), "c2")
    .holds(B, (1_300, 1_310), "c1").arrives(B, 2, (1_320, 1_400), "c1"))]
#[case::what_it_had_in_flight_drains(story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900)).row(A, (10, 60), "c1")
    .arrives(A, 1, (20, 1_070), "c1").aborted().row(A, (60, 4_000), "c2"))]
#[case::it_was_lost_when_its_connection_cooled(story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900))
    .send(A, 1, (60, 100), Answer::Busy).renew(A, (950, 960), Answer::Over))]
fn nothing_is_found_in(#[case] story: Story) {
    assert_eq!(check(&story.0, &RULES), []);
}

#[rstest]
#[case::two_hold(Kind::TwoHolders, story().holds(A, (0, 10), "c").holds(B, (4_000, 4_010), "c"))]
#[case::two_hold_after_one_between(Kind::TwoHolders, story()
    .holds(A, (0, 10), "c").renew(A, (4_000, 4_010), granted(1))
    .holds(B, (20, 30), "d").release(B, (40, 50), granted(1)).holds((2, 2), (6_000, 6_010), "c"))]
#[case::one_owner_twice(Kind::TwoHolders, story()
    .holds(A, (0, 10), "c").holds((1, 2), (100, 110), "c"))]
#[case::no_release_was_asked_for_yet(Kind::TwoHolders, story()
    .holds(A, (0, 10), "c").release(A, (200, 210), granted(1)).holds(B, (105, 120), "c"))]
#[case::two_send(Kind::TwoSenders, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").release(A, (100, 110), granted(1))
    .holds(B, (480, 600), "c").arrives(B, 2, (490, 600), "c"))]
#[case::a_short_pause_is_no_excuse(Kind::TwoSenders, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").release(A, (100, 110), granted(1))
    .fault(Fault::Pause { plane: 0 }, (30, 520)).holds(B, (480, 600), "c").arrives(B, 2, (490, 600), "c"))]
#[case::granted_with_a_request_in_flight(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").release(A, (100, 110), granted(1))
    .holds(B, (200, 210), "c"))]
#[case::another_data_plane_paused(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 900), "c").release(A, (100, 110), granted(1))
    .fault(Fault::Pause { plane: 1 }, (30, 800)).holds(B, (200, 210), "c"))]
#[case::the_pause_was_over(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 2_000), "c").release(A, (1_500, 1_510), granted(1))
    .fault(Fault::Pause { plane: 0 }, (30, 800)).holds(B, (1_600, 1_610), "c"))]
#[case::an_owners_next_lease(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").release(A, (100, 110), granted(1))
    .holds((1, 2), (200, 210), "c"))]
#[case::noticed_too_late(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_120), "c").aborted()
    .release(A, (100, 110), granted(1)).holds(B, (1_040, 1_050), "c"))]
#[case::nobody_was_granted(Kind::OutsideLease, story().arrives(A, 1, (25, 500), "c"))]
#[case::before_it_was_asked_for(Kind::OutsideLease, story()
    .holds(A, (50, 60), "c").arrives(A, 1, (25, 500), "c"))]
#[case::after_its_expiry(Kind::OutsideLease, story()
    .holds(A, (0, 10), "c").send(A, 1, (4_900, 5_100), Answer::Served).arrives(A, 1, (5_011, 5_100), "c"))]
#[case::after_a_renewal_that_nobody_heard_of(Kind::OutsideLease, story()
    .holds(A, (0, 10), "c").renew(A, (4_000, 4_100), Answer::Unknown).arrives(A, 1, (11_101, 11_200), "c"))]
#[case::sent_after_its_release(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1))
    .send(A, 1, (110, 400), Answer::Served).arrives(A, 1, (160, 390), "c"))]
#[case::sent_after_it_was_denied(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").renew(A, (4_990, 5_001), Answer::Over)
    .send(A, 1, (5_002, 5_009), Answer::Served).arrives(A, 1, (5_003, 5_008), "c"))]
#[case::sent_after_its_release_with_another_data_plane_paused(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).fault(Fault::Pause { plane: 1 }, (120, 900))
    .send(A, 1, (150, 400), Answer::Served).arrives(A, 1, (160, 390), "c"))]
#[case::sent_after_the_authority_had_recovered(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (500, 510), granted(1)).fault(Fault::Stop { replica: 0 }, (20, 130))
    .send(A, 1, (530, 600), Answer::Served).arrives(A, 1, (531, 590), "c"))]
#[case::it_arrived_before_the_authority_was_away(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1))
    .send(A, 1, (150, 400), Answer::Served).arrives(A, 1, (160, 390), "c").fault(Fault::Restart, (160, 300)))]
#[case::sent_beyond_every_horizon(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).fault(Fault::Restart, (120, 1_200))
    .send(A, 1, (1_110, 1_150), Answer::Served).arrives(A, 1, (1_115, 1_140), "c"))]
#[case::sent_after_its_release_beyond_a_stall(Kind::SentAfterEnd, story()
    .holds(A, (0, 10), "c").release(A, (100, 110), granted(1)).asleep((520, 700))
    .send(A, 1, (500, 800), Answer::Served).arrives(A, 1, (710, 790), "c"))]
#[case::cut_though_it_held(Kind::CutEarly, story()
    .holds(A, (0, 10), "c").send(A, 1, (20, 500), Answer::Cut).arrives(A, 1, (25, 500), "c").aborted())]
#[case::cut_with_another_data_plane_paused(Kind::CutEarly, story()
    .holds(A, (0, 10), "c").fault(Fault::Pause { plane: 1 }, (20, 500)).send(A, 1, (20, 500), Answer::Cut))]
#[case::cut_after_the_authority_had_recovered(Kind::CutEarly, story()
    .holds(A, (0, 10), "c").fault(Fault::Stop { replica: 0 }, (20, 100)).send(A, 1, (501, 600), Answer::Cut))]
#[case::after_the_drain_with_a_control_plane_stopped(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_411), "c").aborted().release(A, (100, 110), granted(1))
    .fault(Fault::Stop { replica: 0 }, (120, 1_400)))]
#[case::beside_it_with_a_control_plane_stopped(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 900), "c").release(A, (100, 110), granted(1))
    .fault(Fault::Stop { replica: 0 }, (30, 800)).holds(B, (200, 210), "c"))]
#[case::a_request_is_denied_with_another_data_plane_paused(Kind::Lost, story()
    .holds(A, (0, 10), "c").fault(Fault::Pause { plane: 1 }, (3_900, 4_350)).send(A, 1, (4_300, 4_390), Answer::Over))]
#[case::after_the_drain(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_411), "c").aborted().release(A, (100, 110), granted(1)))]
#[case::cut_late_though_the_upstream_ran(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_901), "c").aborted().release(A, (100, 110), granted(1))
    .asleep((1_350, 1_840)))]
#[case::after_the_upstream_had_slept(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_411), "c").aborted().release(A, (100, 110), granted(1))
    .asleep((200, 700)))]
#[case::beside_it_before_the_upstream_slept(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 700), "c").aborted().asleep((390, 690))
    .release(A, (100, 110), granted(1)).holds(B, (200, 210), "c"))]
#[case::after_its_expiry_though_the_upstream_ran(Kind::OutsideLease, story()
    .holds(A, (0, 10), "c").send(A, 1, (4_900, 5_300), Answer::Served).arrives(A, 1, (5_200, 5_300), "c")
    .asleep((4_950, 5_105)))]
#[case::after_an_expiry_and_the_drain(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 6_311), "c").aborted())]
#[case::cut_late_after_a_pause(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 9_301), "c").aborted()
    .fault(Fault::Pause { plane: 0 }, (1_000, 9_000)))]
#[case::a_generation_fell(Kind::GenerationFell, story()
    .holds((1, 2), (0, 10), "c").release((1, 2), (20, 30), granted(2)).holds(A, (100, 110), "c"))]
#[case::an_old_generation_is_renewed(Kind::GenerationFell, story()
    .holds((1, 2), (0, 10), "c").renew(A, (100, 110), granted(1)))]
#[case::it_holds_again(Kind::Revived, story()
    .holds(A, (0, 10), "c").release(A, (20, 30), granted(1)).acquire(1, (100, 110), granted(1)))]
#[case::a_denied_one_is_renewed(Kind::Revived, story()
    .holds(A, (0, 10), "c").renew(A, (4_990, 5_001), Answer::Over).renew(A, (5_002, 5_003), granted(1)))]
#[case::a_renewal_is_denied(Kind::Lost, story()
    .holds(A, (0, 10), "c").renew(A, (100, 110), Answer::Over))]
#[case::a_status_is_denied(Kind::Lost, story()
    .holds(A, (0, 10), "c").status(A, (4_980, 4_999), Answer::Over))]
#[case::a_request_is_denied(Kind::Lost, story()
    .holds(A, (0, 10), "c").send(A, 1, (4_300, 4_390), Answer::Over))]
#[case::a_request_is_denied_after_more_than_a_question_takes(Kind::Lost, story()
    .holds(A, (0, 10), "c").send(A, 1, (4_000, 4_390), Answer::Over))]
#[case::an_acquire_finds_all_taken(Kind::Lost, story()
    .holds(A, (0, 10), "c").acquire(1, (100, 110), Answer::Busy))]
#[case::an_acquire_gives_another(Kind::Lost, story()
    .acquire(1, (0, 10), granted(1)).acquire(1, (100, 110), granted(2)))]
#[case::it_moved(Kind::TwoConnections, story()
    .holds(A, (0, 10), "c").row(A, (20, 20), "d"))]
#[case::two_rows_of_a_connection(Kind::TwoRows, story()
    .row(A, (0, 10), "c").row(B, (9, 20), "c"))]
#[case::two_rows_of_an_owner(Kind::TwoRows, story()
    .row(A, (0, 10), "c").row((1, 2), (9, 20), "d"))]
#[case::no_row(Kind::NoRow, story().acquire(1, (0, 10), granted(1)))]
#[case::given_back_unasked(Kind::ReleasedUnasked, story()
    .acquire(1, (0, 10), granted(1)).row(A, (5, 100), "c").ended("OWNER_EXIT"))]
#[case::given_back_before_it_was_asked_for(Kind::ReleasedUnasked, story()
    .acquire(1, (0, 10), granted(1)).row(A, (5, 100), "c").ended("OWNER_EXIT")
    .release(A, (121, 130), granted(1)))]
#[case::another_connection_cooled(Kind::TwoConnections, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 2 }, (50, 900)).row(A, (10, 60), "c1")
    .row(A, (60, 4_000), "c2"))]
#[case::it_moved_before_its_connection_cooled(Kind::TwoConnections, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (150, 900)).row(A, (10, 60), "c1")
    .row(A, (60, 4_000), "c2"))]
#[case::it_was_in_both_places(Kind::TwoConnections, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900)).row(A, (10, 90), "c1")
    .row(A, (60, 4_000), "c2"))]
#[case::it_moved_to_a_held_one(Kind::TwoHolders, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900)).row(A, (10, 60), "c1")
    .row(A, (60, 4_000), "c2").renew(A, (1_000, 1_010), granted(1)).holds(B, (0, 20), "c2"))]
#[case::it_went_on_where_it_was(Kind::NotCut, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900)).row(A, (10, 60), "c1")
    .arrives(A, 1, (20, 1_390), "c1").aborted().row(A, (60, 4_000), "c2"))]
#[case::confirmed_after_its_connection_cooled(Kind::Lost, story()
    .holds(A, (0, 10), "c1").fault(Fault::Cool { connection: 1 }, (50, 900))
    .renew(A, (950, 960), granted(1)).renew(A, (1_000, 1_010), Answer::Over))]
#[case::it_sent_elsewhere(Kind::TwoConnections, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (20, 30), "d"))]
fn a_violation_is_found(#[case] kind: Kind, #[case] story: Story) {
    let found = story.kinds();
    assert!(found.contains(&kind), "{found:?}");
}

/// What follows from a violation is allowed to be found too, but not without it.
#[rstest]
#[case(Kind::TwoHolders, story().holds(A, (0, 10), "c").holds(B, (4_000, 4_010), "c"))]
#[case(Kind::NotCut, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 1_411), "c").aborted().release(A, (100, 110), granted(1)))]
#[case(Kind::BesideHolder, story()
    .holds(A, (0, 10), "c").arrives(A, 1, (25, 500), "c").release(A, (100, 110), granted(1))
    .holds(B, (200, 210), "c"))]
fn only_one_is_found(#[case] kind: Kind, #[case] story: Story) {
    assert_eq!(story.kinds(), [kind]);
}
