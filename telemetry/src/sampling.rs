//! Which traces are recorded: `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.

use opentelemetry_sdk::trace::Sampler;

use crate::settings::BadSetting;

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";

/// The sampler of that name. Without one everything is sampled that its caller does not say is not.
///
/// # Errors
/// When the name is not known, or the argument is no ratio from 0 to 1.
pub(crate) fn sampler(name: Option<&str>, argument: Option<&str>) -> Result<Sampler, BadSetting> {
    let ratio = || -> Result<Sampler, BadSetting> {
        let text = argument.unwrap_or("1");
        let ratio: f64 = text.trim().parse().unwrap_or(f64::NAN);
        if !(0.0..=1.0).contains(&ratio) {
            return Err(BadSetting::new(ARGUMENT, text, "a ratio from 0 to 1"));
        }
        Ok(Sampler::TraceIdRatioBased(ratio))
    };
    let parent_based = |root| Sampler::ParentBased(Box::new(root));
    Ok(match name.unwrap_or("parentbased_always_on") {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => ratio()?,
        "parentbased_always_on" => parent_based(Sampler::AlwaysOn),
        "parentbased_always_off" => parent_based(Sampler::AlwaysOff),
        "parentbased_traceidratio" => parent_based(ratio()?),
        other => {
            let known = "always_on, always_off, traceidratio, or one of these behind parentbased_";
            return Err(BadSetting::new(SAMPLER, other, known));
        }
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::default(None, None, "ParentBased(AlwaysOn)")]
    #[case::never(Some("always_off"), None, "AlwaysOff")]
    #[case::ratio(Some("traceidratio"), Some("0.25"), "TraceIdRatioBased(0.25)")]
    #[case::parent(
        Some("parentbased_traceidratio"),
        Some("0.1"),
        "ParentBased(TraceIdRatioBased(0.1))"
    )]
    #[case::all(
        Some("parentbased_traceidratio"),
        None,
        "ParentBased(TraceIdRatioBased(1.0))"
    )]
    fn samplers_go_by_their_names(
        #[case] name: Option<&str>,
        #[case] argument: Option<&str>,
        #[case] expected: &str,
    ) {
        assert_eq!(format!("{:?}", sampler(name, argument).unwrap()), expected);
    }

    #[rstest]
    #[case::unknown("jaeger_remote", "1", "OTEL_TRACES_SAMPLER ")]
    #[case::words("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG ")]
    #[case::too_much("parentbased_traceidratio", "1.5", "OTEL_TRACES_SAMPLER_ARG ")]
    #[case::less_than_none("traceidratio", "-0.1", "OTEL_TRACES_SAMPLER_ARG ")]
    #[case::no_number("traceidratio", "NaN", "OTEL_TRACES_SAMPLER_ARG ")]
    fn what_is_no_sampler_is_refused(
        #[case] name: &str,
        #[case] argument: &str,
        #[case] beginning: &str,
    ) {
        let error = sampler(Some(name), Some(argument)).unwrap_err().to_string();
        assert!(error.starts_with(beginning), "{error}");
    }
}
