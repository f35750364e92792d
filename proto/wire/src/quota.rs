//! Quota snapshots.

use tidegate_core::ids::ModelId;
use tidegate_core::number::Finite;
use tidegate_core::telemetry::quota::MAX_MODEL_WINDOWS;
use tidegate_core::telemetry::{QuotaSnapshot, QuotaWindow};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;

use crate::{WireError, name};

/// A snapshot as a message.
#[must_use]
pub fn to_proto(quota: &QuotaSnapshot) -> common::QuotaSnapshot {
    let window = |window: &QuotaWindow| common::QuotaWindow {
        used: window.used.get(),
        resets_at_unix_ms: window.resets_at.map(|at| at.0),
        observed_at_unix_ms: window.observed_at.map(|at| at.0),
    };
    common::QuotaSnapshot {
        session: quota.session.as_ref().map(window),
        weekly: quota.weekly.as_ref().map(window),
        monthly: quota.monthly.as_ref().map(window),
        weekly_by_model: quota
            .weekly_by_model
            .iter()
            .map(|(model, of_model)| common::ModelQuotaWindow {
                model: model.to_string(),
                window: Some(window(of_model)),
            })
            .collect(),
        used: quota.used.map(Finite::get),
        resets_at_unix_ms: quota.resets_at.map(|at| at.0),
        limit_reached: quota.limit_reached,
        unreadable: quota.unreadable,
        observed_at_unix_ms: quota.observed_at.0,
        unnamed_observed_at_unix_ms: quota.unnamed_observed_at.map(|at| at.0),
    }
}

/// A snapshot from a message.
///
/// # Errors
/// When a share is not within 0 to 1, a model has no valid name, or there are too many of them.
pub fn from_proto(quota: common::QuotaSnapshot) -> Result<QuotaSnapshot, WireError> {
    if quota.weekly_by_model.len() > MAX_MODEL_WINDOWS {
        return Err(WireError::invalid("weekly_by_model", "at most 64 models"));
    }
    let weekly_by_model = quota.weekly_by_model.into_iter().map(|of_model| {
        let field = "weekly_by_model.window";
        Ok((
            name("weekly_by_model.model", ModelId::new(of_model.model))?,
            window(field, of_model.window)?.ok_or(WireError::Missing(field))?,
        ))
    });
    Ok(QuotaSnapshot {
        session: window("session", quota.session)?,
        weekly: window("weekly", quota.weekly)?,
        monthly: window("monthly", quota.monthly)?,
        weekly_by_model: weekly_by_model.collect::<Result<_, _>>()?,
        used: quota.used.map(|used| share("used", used)).transpose()?,
        resets_at: quota.resets_at_unix_ms.map(Timestamp),
        limit_reached: quota.limit_reached,
        unreadable: quota.unreadable,
        observed_at: Timestamp(quota.observed_at_unix_ms),
        unnamed_observed_at: quota.unnamed_observed_at_unix_ms.map(Timestamp),
    })
}

fn window(
    field: &'static str,
    window: Option<common::QuotaWindow>,
) -> Result<Option<QuotaWindow>, WireError> {
    window
        .map(|window| {
            Ok(QuotaWindow {
                used: share(field, window.used)?,
                resets_at: window.resets_at_unix_ms.map(Timestamp),
                observed_at: window.observed_at_unix_ms.map(Timestamp),
            })
        })
        .transpose()
}

fn share(field: &'static str, share: f64) -> Result<Finite, WireError> {
    if !(0.0..=1.0).contains(&share) {
        return Err(WireError::invalid(field, "a share must be within 0 to 1"));
    }
    Finite::new(share).map_err(|_| WireError::invalid(field, "no number"))
}
