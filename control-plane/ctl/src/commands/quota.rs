//! `tidegatectl quota get` and `quota set`.

use std::time::SystemTime;

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{
    ConnectionQuotas, ListQuotasRequest, QuotaSource, ReportQuotaRequest, ToldQuota,
};
use tidegate_proto::common::v1 as common;

use crate::cli::{Output, QuotaCommand, QuotaGetArguments, QuotaSetArguments};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment_value, print_value, remaining, write_line};
use crate::pages::all_pages;
use crate::quota_window::{QuotaWindow, unix_ms};

/// Shows quotas, or tells them.
pub(crate) async fn run(
    client: &mut Client,
    command: QuotaCommand,
    output: Output,
) -> Result<(), Failure> {
    match command {
        QuotaCommand::Get(arguments) => get(client, arguments, output).await,
        QuotaCommand::Set(arguments) => set(client, arguments, output).await,
    }
}

async fn get(
    client: &mut Client,
    arguments: QuotaGetArguments,
    output: Output,
) -> Result<(), Failure> {
    let connection = arguments.connection.unwrap_or_default();
    let quotas = all_pages(async |page_token| {
        let (service, request) = client.call(ListQuotasRequest {
            connection: connection.clone(),
            page_token,
            ..ListQuotasRequest::default()
        });
        let answer = service.list_quotas(request).await?.into_inner();
        Ok((answer.quotas, answer.next_page_token))
    })
    .await?;
    if output.is_for_people() {
        return table(&quotas).print(output);
    }
    print_value(&quotas.iter().map(as_value).collect(), output)
}

async fn set(
    client: &mut Client,
    arguments: QuotaSetArguments,
    output: Output,
) -> Result<(), Failure> {
    let QuotaSetArguments {
        connection,
        session,
        weekly,
        monthly,
        model,
        used,
        limit_reached,
        observed_at,
    } = arguments;
    let now = SystemTime::now();
    let window = |window: QuotaWindow| common::QuotaWindow {
        used: window.used,
        resets_at_unix_ms: window.reset.and_then(|reset| reset.unix_ms(now)),
        observed_at_unix_ms: None,
    };
    let unnamed = used.map(window);
    let quota = common::QuotaSnapshot {
        session: session.map(window),
        weekly: weekly.map(window),
        monthly: monthly.map(window),
        weekly_by_model: model
            .into_iter()
            .map(|(model, of_model)| common::ModelQuotaWindow {
                model,
                window: Some(window(of_model)),
            })
            .collect(),
        used: unnamed.map(|it| it.used),
        resets_at_unix_ms: unnamed.and_then(|it| it.resets_at_unix_ms),
        limit_reached,
        unreadable: false,
        observed_at_unix_ms: observed_at.and_then(unix_ms).unwrap_or_default(),
        unnamed_observed_at_unix_ms: None,
    };
    let (service, request) = client.call(ReportQuotaRequest {
        connection,
        quota: Some(quota),
    });
    let answer = service.report_quota(request).await?.into_inner();
    if !output.is_for_people() {
        let known = answer.known.as_ref().map(as_value);
        return print_value(&json!({"taken": answer.taken, "known": known}), output);
    }
    if !answer.taken {
        write_line("note: something newer had been fetched, which stands")?;
    }
    table(answer.known.as_slice()).print(output)
}

/// What strategies read of each connection, and below it who told what.
fn table(quotas: &[ConnectionQuotas]) -> Listing {
    let mut listing = Listing::new(&[
        "connection",
        "provider",
        "source",
        "age",
        "session",
        "weekly",
        "monthly",
        "by model",
        "other",
        "limit reached",
        "low",
    ]);
    for of_connection in quotas {
        let known = of_connection.known.as_ref();
        let row = |source: &str, age_ms: Option<u64>, quota: Option<&common::QuotaSnapshot>| {
            let low = age_ms.is_none() && quota.is_some();
            let window = |window: Option<&common::QuotaWindow>| json!(window.map(words));
            let unnamed = quota.and_then(unnamed);
            let of_models = quota.into_iter().flat_map(|it| &it.weekly_by_model);
            let of_models: Vec<String> = of_models
                .filter_map(|it| Some(format!("{} {}", it.model, words(it.window.as_ref()?))))
                .collect();
            vec![
                json!(of_connection.connection),
                json!(of_connection.provider),
                json!(source),
                json!(remaining(age_ms)),
                window(quota.and_then(|it| it.session.as_ref())),
                window(quota.and_then(|it| it.weekly.as_ref())),
                window(quota.and_then(|it| it.monthly.as_ref())),
                json!(of_models),
                window(unnamed.as_ref()),
                json!(quota.map(|it| it.limit_reached)),
                json!(low.then_some(of_connection.low)),
            ]
        };
        listing.push(row("known", None, known));
        for told in &of_connection.told {
            listing.push(row(source(told), Some(told.age_ms), told.quota.as_ref()));
        }
    }
    listing
}

fn unnamed(quota: &common::QuotaSnapshot) -> Option<common::QuotaWindow> {
    Some(common::QuotaWindow {
        used: quota.used?,
        resets_at_unix_ms: quota.resets_at_unix_ms,
        observed_at_unix_ms: quota.unnamed_observed_at_unix_ms,
    })
}

fn source(told: &ToldQuota) -> &'static str {
    match told.source() {
        QuotaSource::Headers => "headers",
        QuotaSource::Fetched => "fetched",
        QuotaSource::Unspecified => "unknown",
    }
}

fn words(window: &common::QuotaWindow) -> String {
    let used = format!("{:.1}%", window.used * 100.0);
    match moment_value(window.resets_at_unix_ms).as_str() {
        Some(moment) => format!("{used} until {moment}"),
        None => used,
    }
}

fn as_value(quotas: &ConnectionQuotas) -> Value {
    let told: Vec<Value> = quotas
        .told
        .iter()
        .map(|told| {
            json!({
                "source": source(told),
                "ageMs": told.age_ms,
                "quota": told.quota.as_ref().map(snapshot),
            })
        })
        .collect();
    json!({
        "connection": quotas.connection,
        "provider": quotas.provider,
        "polled": quotas.polled,
        "low": quotas.low,
        "known": quotas.known.as_ref().map(snapshot),
        "told": told,
    })
}

fn snapshot(quota: &common::QuotaSnapshot) -> Value {
    let window = |window: Option<&common::QuotaWindow>| {
        window.map(|it| json!({"used": it.used, "resetsAt": moment_value(it.resets_at_unix_ms)}))
    };
    let of_models = quota
        .weekly_by_model
        .iter()
        .map(|it| (it.model.clone(), json!(window(it.window.as_ref()))));
    json!({
        "session": window(quota.session.as_ref()),
        "weekly": window(quota.weekly.as_ref()),
        "monthly": window(quota.monthly.as_ref()),
        "weeklyByModel": of_models.collect::<serde_json::Map<_, _>>(),
        "used": quota.used,
        "resetsAt": moment_value(quota.resets_at_unix_ms),
        "limitReached": quota.limit_reached,
        "unreadable": quota.unreadable,
        "observedAt": moment_value(Some(quota.observed_at_unix_ms)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colours;

    fn quotas() -> ConnectionQuotas {
        let window = |used, resets_at_unix_ms| common::QuotaWindow {
            used,
            resets_at_unix_ms,
            observed_at_unix_ms: None,
        };
        let quota = common::QuotaSnapshot {
            session: Some(window(0.25, Some(1_000))),
            weekly_by_model: vec![common::ModelQuotaWindow {
                model: "opus".to_owned(),
                window: Some(window(1.0, None)),
            }],
            used: Some(0.5),
            ..common::QuotaSnapshot::default()
        };
        ConnectionQuotas {
            connection: "a".to_owned(),
            provider: "p".to_owned(),
            known: Some(quota.clone()),
            told: vec![ToldQuota {
                source: QuotaSource::Fetched.into(),
                quota: Some(quota),
                age_ms: 61_000,
            }],
            polled: true,
            low: true,
        }
    }

    #[test]
    fn people_see_what_is_known_and_below_it_who_told_it() {
        let nothing = ConnectionQuotas {
            connection: "b".to_owned(),
            provider: "p".to_owned(),
            ..ConnectionQuotas::default()
        };
        let table = table(&[quotas(), nothing]).table(&[], Colours::Off);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .skip(1)
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|it| !it.is_empty())
                    .collect()
            })
            .collect();
        let session = "25.0% until 1970-01-01T00:00:01Z";
        let rest = ["-", "-", "opus 100.0%", "50.0%", "false"];
        let expected =
            |source, age, low| [&["a", "p", source, age, session], &rest[..], &[low]].concat();
        assert_eq!(lines[0], expected("known", "-", "true"));
        assert_eq!(lines[1], expected("fetched", "1m 1s", "-"));
        assert_eq!(lines[2], [&["b", "p", "known"], &["-"; 8][..]].concat());
    }

    #[test]
    fn programs_get_windows_by_name() {
        let value = as_value(&quotas());
        assert_eq!(value["polled"], true);
        assert_eq!(value["low"], true);
        assert_eq!(value["told"][0]["source"], "fetched");
        assert_eq!(value["told"][0]["ageMs"], 61_000);
        let session = json!({"used": 0.25, "resetsAt": "1970-01-01T00:00:01Z"});
        assert_eq!(value["known"]["session"], session);
        let opus = &value["told"][0]["quota"]["weeklyByModel"]["opus"];
        assert_eq!(*opus, json!({"used": 1.0, "resetsAt": null}));
        assert_eq!(value["known"]["weekly"], Value::Null);
    }
}
