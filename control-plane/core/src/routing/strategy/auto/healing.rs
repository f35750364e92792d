//! Whom `auto` may pick, and when it takes no chances (`routing.md` §9.1 step 5, §9.4).
//!
//! Those that are left out here are not out of the order: they stand behind the others.

use super::super::score::ROUNDING;
use super::{Assessment, Contest};
use crate::breaker::Phase;

/// A target with a score below this is not picked.
const LEAST_SCORE: f64 = 0.2;

/// Of these: those that may be used now, are of the combo's pool and do well; if there are none, all that may be used
/// now; if there are none either, all.
pub(super) fn pool(contest: &Contest<'_>, among: &[usize]) -> Vec<usize> {
    let select = |holds: &dyn Fn(usize, &Assessment) -> bool| -> Vec<usize> {
        let holds = |index: &usize| {
            let assessment = contest.assessments.get(*index);
            assessment.is_some_and(|assessment| holds(*index, assessment))
        };
        among.iter().copied().filter(holds).collect()
    };
    let is_admitted =
        |assessment: &Assessment| assessment.reading.eligible && !is_open(assessment.reading.phase);
    let best = select(&|index, assessment| {
        is_admitted(assessment) && is_of_pool(contest, index) && is_well(contest, assessment)
    });
    if !best.is_empty() {
        return best;
    }
    let admitted = select(&|_, assessment| is_admitted(assessment));
    if admitted.is_empty() {
        among.to_vec()
    } else {
        admitted
    }
}

/// More than half of the candidates are behind open breakers.
pub(super) fn is_incident(assessments: &[Assessment]) -> bool {
    let open = assessments
        .iter()
        .filter(|assessment| is_open(assessment.reading.phase))
        .count();
    open > assessments.len() / 2
}

fn is_of_pool(contest: &Contest<'_>, index: usize) -> bool {
    let pool = &contest.config.candidate_pool;
    let provider = contest
        .question
        .candidates
        .get(index)
        .map(|candidate| candidate.provider.as_str());
    pool.is_empty() || provider.is_some_and(|provider| pool.iter().any(|of| of == provider))
}

fn is_well(contest: &Contest<'_>, assessment: &Assessment) -> bool {
    let rests = assessment
        .reading
        .rests_until
        .is_some_and(|end| end > contest.question.now);
    !rests && assessment.score + ROUNDING >= LEAST_SCORE
}

fn is_open(phase: Phase) -> bool {
    matches!(phase, Phase::Open { .. })
}
