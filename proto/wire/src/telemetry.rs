//! What was seen of the past, as data planes send it and control planes keep it for each other.

use std::collections::BTreeMap;

use prost::Message as _;
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::telemetry::LastKnownGood;
use tidegate_core::telemetry::aggregate::{
    Aggregate, Binding, ComboPast, ConnectionPast, Failure, MAX_FAILURES, PlaneLoad, Refused,
    TargetPast, ToolLimit,
};
use tidegate_core::telemetry::quota::QuotaSource;
use tidegate_core::telemetry::track::{BUCKETS, Track};
use tidegate_core::time::Timestamp;
use tidegate_proto::report::v1 as report;

use crate::{WireError, name, optional_name, quota};

/// Longest execution key, in bytes: ten step ids of 200 characters and an account.
const MAX_KEY_BYTES: usize = 4_096;
/// Longest text that the turns of a conversation have in common, in bytes.
const MAX_SESSION_BYTES: usize = 128;
/// Most tools of a request.
const MAX_TOOL_LIMIT: u32 = 10_000;

/// An aggregate as a message.
#[must_use]
pub fn to_proto(aggregate: &Aggregate) -> report::Telemetry {
    let Aggregate {
        combos,
        connections,
        tool_limits,
        planes,
    } = aggregate;
    report::Telemetry {
        combos: combos.iter().map(combo_to_proto).collect(),
        connections: connections.iter().map(connection_to_proto).collect(),
        tool_limits: tool_limits
            .iter()
            .map(|(provider, learned)| report::ToolLimit {
                provider: provider.to_string(),
                limit: learned.limit,
                at_unix_ms: learned.at.0,
            })
            .collect(),
        planes: planes
            .iter()
            .map(|(plane, load)| report::PlaneLoad {
                plane: plane.0,
                number: load.number,
                at_unix_ms: load.at.0,
                connections: load_to_proto(&load.connections),
            })
            .collect(),
    }
}

/// A sum that was shortened until it is small enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortened {
    /// What is left of it.
    pub message: report::Telemetry,
    /// What had to leave.
    pub shed: Refused,
    /// How often some had to leave.
    pub times: usize,
}

impl Shortened {
    /// What is left of it as bytes, for those who keep it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }
}

/// A sum as a message of at most so many bytes, without what had to leave it for that ([`Aggregate::shed`]): what is
/// within the bounds of each kind may still be too large to be passed on. Finding out how large it is costs more than
/// anything else, so who shortens the same sum again and again says how often some left the last time.
#[must_use]
pub fn shortened(sum: Aggregate, most_bytes: usize, times_before: usize) -> Shortened {
    let mut rest = sum;
    let mut shed = Refused::default();
    let mut times = 0_usize;
    loop {
        if times >= times_before {
            let message = to_proto(&rest);
            if message.encoded_len() <= most_bytes {
                return Shortened {
                    message,
                    shed,
                    times,
                };
            }
        }
        let left = rest.shed();
        if left == Refused::default() {
            return Shortened {
                message: to_proto(&rest),
                shed,
                times,
            };
        }
        shed.add_all(&left);
        times = times.saturating_add(1);
    }
}

/// An aggregate from a message.
///
/// # Errors
/// When a name is not valid or a number not within its range.
pub fn from_proto(telemetry: report::Telemetry) -> Result<Aggregate, WireError> {
    let combos = telemetry.combos.into_iter().map(combo_from_proto);
    let connections = telemetry.connections.into_iter();
    let tool_limits = telemetry.tool_limits.into_iter().map(|learned| {
        let limit = learned.limit;
        if !(1..=MAX_TOOL_LIMIT).contains(&limit) {
            return Err(WireError::invalid("tool_limits.limit", "1 to 10000"));
        }
        let at = Timestamp(learned.at_unix_ms);
        let provider = name("tool_limits.provider", ProviderId::new(learned.provider))?;
        Ok((provider, ToolLimit { limit, at }))
    });
    let planes = telemetry.planes.into_iter().map(|load| {
        let past = PlaneLoad {
            number: load.number,
            at: Timestamp(load.at_unix_ms),
            connections: load_from_proto(load.connections)?,
        };
        Ok((PlaneIncarnation(load.plane), past))
    });
    Ok(Aggregate {
        combos: combos.collect::<Result<_, _>>()?,
        connections: connections
            .map(connection_from_proto)
            .collect::<Result<_, _>>()?,
        tool_limits: tool_limits.collect::<Result<_, _>>()?,
        planes: planes.collect::<Result<_, _>>()?,
    })
}

/// An aggregate as bytes, for those who keep it.
#[must_use]
pub fn encode(aggregate: &Aggregate) -> Vec<u8> {
    to_proto(aggregate).encode_to_vec()
}

/// An aggregate from bytes.
///
/// # Errors
/// When they are no such message, or it makes no sense.
pub fn decode(bytes: &[u8]) -> Result<Aggregate, WireError> {
    let telemetry = report::Telemetry::decode(bytes)
        .map_err(|error| WireError::invalid("telemetry", error.to_string()))?;
    from_proto(telemetry)
}

/// Attempts under way as messages.
#[must_use]
pub fn load_to_proto(load: &BTreeMap<ConnectionId, u32>) -> Vec<report::ConnectionLoad> {
    load.iter()
        .map(|(connection, count)| report::ConnectionLoad {
            connection: connection.to_string(),
            count: *count,
        })
        .collect()
}

/// Attempts under way from messages.
///
/// # Errors
/// When a name is not valid.
pub fn load_from_proto(
    load: Vec<report::ConnectionLoad>,
) -> Result<BTreeMap<ConnectionId, u32>, WireError> {
    load.into_iter()
        .map(|load| {
            let id = ConnectionId::new(load.connection);
            Ok((name("in_flight.connection", id)?, load.count))
        })
        .collect()
}

fn combo_to_proto((combo, past): (&ComboName, &ComboPast)) -> report::ComboTelemetry {
    let targets = past.targets.iter().map(|(key, target)| {
        let served = target.good.as_ref().map(|good| report::LastServed {
            provider: good.provider.to_string(),
            connection: text(good.connection.as_ref()),
            at_unix_ms: good.at.0,
            began_at_unix_ms: target.good_began_at.0,
        });
        let failures = target.failures.iter().map(|failure| report::TargetFailure {
            at_unix_ms: failure.at.0,
            began_at_unix_ms: failure.began_at.0,
        });
        report::TargetTelemetry {
            key: key.clone(),
            ended: target.ended,
            at_unix_ms: target.at.0,
            served,
            failed_at_unix_ms: target.failed_at.0,
            failures: failures.collect(),
        }
    });
    let models = past.models.iter().flat_map(|(provider, models)| {
        let of_provider = models.iter();
        of_provider.map(move |(model, track)| model_to_proto(provider.as_str(), model, track))
    });
    let sessions = past.sessions.iter();
    report::ComboTelemetry {
        combo: combo.to_string(),
        targets: targets.collect(),
        models: models.collect(),
        sessions: sessions
            .map(|(session, binding)| report::SessionBinding {
                session: session.clone(),
                connection: binding.connection.to_string(),
                at_unix_ms: binding.at.0,
            })
            .collect(),
    }
}

fn combo_from_proto(past: report::ComboTelemetry) -> Result<(ComboName, ComboPast), WireError> {
    let targets = past.targets.into_iter().map(|target| {
        if target.failures.len() > MAX_FAILURES {
            return Err(WireError::invalid("targets.failures", "at most 15"));
        }
        let failures = target.failures.into_iter().map(|failure| Failure {
            at: Timestamp(failure.at_unix_ms),
            began_at: Timestamp(failure.began_at_unix_ms),
        });
        let began_at = target.served.as_ref().map(|it| it.began_at_unix_ms);
        let good = target.served.map(|served| {
            let connection = "targets.served.connection";
            Ok::<_, WireError>(LastKnownGood {
                provider: name("targets.served.provider", ProviderId::new(&served.provider))?,
                connection: optional_name(connection, &served.connection, |id| {
                    ConnectionId::new(id)
                })?,
                at: Timestamp(served.at_unix_ms),
            })
        });
        let target_past = TargetPast {
            ended: target.ended,
            at: Timestamp(target.at_unix_ms),
            good: good.transpose()?,
            good_began_at: Timestamp(began_at.unwrap_or_default()),
            failures: failures.collect(),
            failed_at: Timestamp(target.failed_at_unix_ms),
        };
        Ok((
            short("targets.key", target.key, MAX_KEY_BYTES)?,
            target_past,
        ))
    });
    let targets = targets.collect::<Result<_, WireError>>()?;
    let mut models: BTreeMap<ProviderId, BTreeMap<ModelId, Track>> = BTreeMap::new();
    for of_model in past.models {
        let provider = name("models.provider", ProviderId::new(&of_model.provider))?;
        let (model, track) = model_from_proto(of_model)?;
        models.entry(provider).or_default().insert(model, track);
    }
    let sessions = past.sessions.into_iter().map(|binding| {
        let session = short("sessions.session", binding.session, MAX_SESSION_BYTES)?;
        let connection = ConnectionId::new(binding.connection);
        let bound = Binding {
            connection: name("sessions.connection", connection)?,
            at: Timestamp(binding.at_unix_ms),
        };
        Ok((session, bound))
    });
    let sessions = sessions.collect::<Result<_, WireError>>()?;
    let combo = name("combos.combo", ComboName::new(past.combo))?;
    let past = ComboPast {
        targets,
        models,
        sessions,
    };
    Ok((combo, past))
}

fn connection_to_proto(
    (connection, past): (&ConnectionId, &ConnectionPast),
) -> report::ConnectionTelemetry {
    let told = |source| past.quotas.get(&source).map(quota::to_proto);
    report::ConnectionTelemetry {
        connection: connection.to_string(),
        ended: past.ended,
        at_unix_ms: past.at.0,
        models: past
            .models
            .iter()
            .map(|(model, track)| model_to_proto("", model, track))
            .collect(),
        seen_quota: told(QuotaSource::Headers),
        fetched_quota: told(QuotaSource::Fetched),
    }
}

fn connection_from_proto(
    past: report::ConnectionTelemetry,
) -> Result<(ConnectionId, ConnectionPast), WireError> {
    let id = name("connections.connection", ConnectionId::new(past.connection))?;
    let told = [
        (QuotaSource::Headers, past.seen_quota),
        (QuotaSource::Fetched, past.fetched_quota),
    ];
    let quotas = told
        .into_iter()
        .filter_map(|(source, told)| Some((source, told?)))
        .map(|(source, told)| Ok((source, quota::from_proto(told)?)));
    let quotas = quotas.collect::<Result<_, WireError>>()?;
    let models = past.models.into_iter().map(model_from_proto);
    let past = ConnectionPast {
        ended: past.ended,
        at: Timestamp(past.at_unix_ms),
        models: models.collect::<Result<_, _>>()?,
        quotas,
    };
    Ok((id, past))
}

fn model_to_proto(provider: &str, model: &ModelId, track: &Track) -> report::ModelTelemetry {
    report::ModelTelemetry {
        provider: provider.to_owned(),
        model: model.to_string(),
        track: Some(report::Track {
            ended: track.ended,
            at_unix_ms: track.at.0,
            succeeded: track.succeeded,
            failed: track.failed,
            latency_ms: track.latency_ms,
            latency_ms_squared: track.latency_ms_squared,
            buckets: track.buckets.keys().map(|it| u32::from(*it)).collect(),
            weights: track.buckets.values().copied().collect(),
        }),
    }
}

fn model_from_proto(of_model: report::ModelTelemetry) -> Result<(ModelId, Track), WireError> {
    let track = of_model.track.ok_or(WireError::Missing("models.track"))?;
    if track.buckets.len() != track.weights.len() {
        return Err(WireError::invalid(
            "models.track.weights",
            "must be as many as the buckets",
        ));
    }
    let bucket = |index: u32| {
        u8::try_from(index)
            .ok()
            .filter(|index| *index < BUCKETS)
            .ok_or_else(|| WireError::invalid("models.track.buckets", "there is no such bucket"))
    };
    let buckets = track.buckets.into_iter().zip(track.weights);
    let buckets = buckets.map(|(index, weight)| Ok((bucket(index)?, sane(weight)?)));
    let buckets = buckets.collect::<Result<_, WireError>>()?;
    let model = name("models.model", ModelId::new(of_model.model))?;
    let track = Track {
        ended: track.ended,
        at: Timestamp(track.at_unix_ms),
        succeeded: sane(track.succeeded)?,
        failed: sane(track.failed)?,
        latency_ms: sane(track.latency_ms)?,
        latency_ms_squared: sane(track.latency_ms_squared)?,
        buckets,
    };
    Ok((model, track))
}

fn sane(weight: f64) -> Result<f64, WireError> {
    if weight.is_finite() && weight >= 0.0 {
        Ok(weight)
    } else {
        Err(WireError::invalid(
            "models.track",
            "weights must be finite and not negative",
        ))
    }
}

fn short(field: &'static str, text: String, limit: usize) -> Result<String, WireError> {
    if text.is_empty() || text.len() > limit {
        return Err(WireError::invalid(field, "empty or too long"));
    }
    Ok(text)
}

fn text<T: ToString>(name: Option<&T>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidegate_core::number::Finite;
    use tidegate_core::telemetry::aggregate::{BoundedSum, Bounds, End, Kind, Verdict};
    use tidegate_core::telemetry::{QuotaSnapshot, QuotaWindow};

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn end(verdict: Verdict) -> Aggregate {
        Aggregate::of_end(End {
            target: Some((ComboName::new("combo").unwrap(), "a>b@c".to_owned())),
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
            model: ModelId::new("m").unwrap(),
            verdict,
            began_at: NOW.minus_ms(7),
            at: NOW,
            session: Some("185f8db32271fe25".to_owned()),
        })
    }

    fn everything() -> Aggregate {
        let connection = ConnectionId::new("c").unwrap();
        let window = QuotaWindow {
            used: Finite::new(0.5).unwrap(),
            resets_at: Some(NOW),
            observed_at: Some(NOW.minus_ms(1)),
        };
        let seen = QuotaSnapshot {
            session: Some(window),
            weekly_by_model: vec![(ModelId::new("m").unwrap(), window)],
            used: Some(Finite::ONE),
            unnamed_observed_at: Some(NOW.minus_ms(2)),
            limit_reached: true,
            observed_at: NOW,
            ..QuotaSnapshot::default()
        };
        let fetched = QuotaSnapshot {
            monthly: Some(window),
            resets_at: Some(NOW),
            unreadable: true,
            ..QuotaSnapshot::default()
        };
        let load = PlaneLoad {
            number: 7,
            at: NOW,
            connections: BTreeMap::from([(connection.clone(), 3)]),
        };
        let mut sum = Aggregate {
            planes: BTreeMap::from([(PlaneIncarnation(u64::MAX), load)]),
            ..Aggregate::default()
        };
        for part in [
            end(Verdict::Served { ready_ms: 120 }),
            end(Verdict::Failed),
            Aggregate::of_quota(connection.clone(), QuotaSource::Headers, seen),
            Aggregate::of_quota(connection, QuotaSource::Fetched, fetched),
            Aggregate::of_tool_limit(ProviderId::new("p").unwrap(), 100, NOW),
        ] {
            assert_eq!(sum.absorb(part, &Bounds::default()), Refused::default());
        }
        sum
    }

    #[test]
    fn an_aggregate_survives_the_way() {
        let sum = everything();
        assert_eq!(decode(&encode(&sum)), Ok(sum));
        assert!(decode(&[0xff]).is_err());
    }

    #[test]
    fn what_is_too_large_is_shortened_to_what_may_be_passed_on() {
        let mut sum = BoundedSum::default();
        for number in 0..200 {
            let mut part = end(Verdict::Served { ready_ms: number });
            let past = part.combos.values_mut().next().unwrap();
            let target = past.targets.pop_first().unwrap().1;
            past.targets
                .insert(format!("{number:04}").repeat(100), target);
            assert_eq!(sum.absorb(part), Refused::default());
        }
        let sum = sum.take();
        let whole = encode(&sum);
        let all = shortened(sum.clone(), whole.len(), 0);
        assert_eq!(all.encode(), whole);
        assert_eq!((all.shed, all.times), (Refused::default(), 0));
        let most = whole.len() / 2;
        let half = shortened(sum.clone(), most, 0);
        assert_eq!(shortened(sum.clone(), most, half.times), half);
        let (bytes, shed) = (half.encode(), half.shed);
        assert!((most / 2..=most).contains(&bytes.len()), "{}", bytes.len());
        assert!(shed.count(Kind::Targets) > 0 && shed.count(Kind::Connections) == 0);
        assert!(decode(&bytes).is_ok());
        assert_eq!(shortened(sum.clone(), 0, 0).message.encoded_len(), 0);
        let nothing = shortened(sum, most, usize::MAX);
        assert_eq!(nothing.message.encoded_len(), 0, "it comes to an end");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let broken: [fn(&mut report::Telemetry); 9] = [
            |it| it.combos[0].targets[0].failures = vec![report::TargetFailure::default(); 16],
            |it| it.combos[0].combo.clear(),
            |it| it.combos[0].targets[0].key = "x".repeat(MAX_KEY_BYTES + 1),
            |it| it.combos[0].sessions[0].session.clear(),
            |it| it.combos[0].models[0].track.as_mut().unwrap().failed = f64::NAN,
            |it| it.combos[0].models[0].track.as_mut().unwrap().buckets[0] = 41,
            |it| {
                it.combos[0].models[0]
                    .track
                    .as_mut()
                    .unwrap()
                    .weights
                    .clear();
            },
            |it| it.connections[0].seen_quota.as_mut().unwrap().used = Some(1.1),
            |it| it.tool_limits[0].limit = 0,
        ];
        for (index, break_it) in broken.into_iter().enumerate() {
            let mut message = to_proto(&everything());
            break_it(&mut message);
            assert!(from_proto(message).is_err(), "{index}");
        }
    }
}
