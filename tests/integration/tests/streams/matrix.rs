//! Every fault of an upstream through the official SDKs, streaming and not: what the SDK raises, or yields.
//!
//! With one provider nothing hides the fault. With a second, healthy one in a combo the client gets the second's answer,
//! unless the first had begun to answer: then it gets what it gets with one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tidegate_integration::{CLIENT_KEY, LIMIT, World, metric};
use tidegate_test_support::upstream::{FakeUpstream, Reply, Selector};
use tidegate_test_support::{ClientCall, FleetOptions, PythonClients, eventually};

use super::faults::{Api, End, Fault, faults};

/// How long a script may take for all faults, some of which end by a time limit.
const SCRIPT_LIMIT: Duration = Duration::from_secs(100);
/// What the healthy provider's answers begin with.
const HEALTHY: &str = "second ";

/// One way to ask.
#[derive(Clone, Copy, Debug)]
struct Ask {
    api: Api,
    stream: bool,
    script: &'static str,
    /// Its word for it.
    mode: &'static str,
}

const fn ask(api: Api, stream: bool, script: &'static str, mode: &'static str) -> Ask {
    Ask {
        api,
        stream,
        script,
        mode,
    }
}

const ASKS: [Ask; 6] = [
    ask(Api::Chat, false, "openai_chat.py", "json"),
    ask(Api::Chat, true, "openai_chat.py", "stream"),
    ask(Api::Responses, false, "openai_chat.py", "responses"),
    ask(Api::Responses, true, "openai_chat.py", "responses_stream"),
    ask(Api::Messages, false, "anthropic_messages.py", "json"),
    ask(Api::Messages, true, "anthropic_messages.py", "stream"),
];

impl Ask {
    /// The provider that has this fault for this way to ask, and for no other: a failure changes no other case.
    fn provider(self, fault: &Fault) -> String {
        let api = format!("{:?}", self.api).to_lowercase();
        let kind = if self.stream { "stream" } else { "whole" };
        format!("{}-{api}-{kind}", fault.name)
    }

    fn expected(self, fault: &Fault) -> End {
        let [chat, responses, messages] = if self.stream {
            fault.streams
        } else {
            fault.whole
        };
        match self.api {
            Api::Chat => chat,
            Api::Responses => responses,
            Api::Messages => messages,
        }
    }
}

/// Everything at the same two upstreams, which know the fault by the model.
struct Stage {
    world: World,
    healthy: [FakeUpstream; 2],
}

async fn stage(faults: &[Fault]) -> Result<Stage> {
    let world = World::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 1,
        ..FleetOptions::default()
    })
    .await?;
    let healthy = [FakeUpstream::start().await?, FakeUpstream::start().await?];
    for upstream in &healthy {
        upstream.set_reply(Reply {
            opening: HEALTHY.to_owned(),
            ..Reply::default()
        });
    }
    for fault in faults {
        for upstream in [&world.one, &world.claude] {
            upstream.set(Selector::any().model(fault.name), fault.mode.clone());
        }
    }
    let stage = Stage { world, healthy };
    stage.world.fleet.apply(&stage.document(faults)).await?;
    Ok(stage)
}

impl Stage {
    fn document(&self, faults: &[Fault]) -> String {
        let [openai, anthropic] = &self.healthy;
        let (one, claude) = (self.world.one.base_url(), self.world.claude.base_url());
        let (mut providers, mut connections, mut combos) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |provider: &str, protocol: &str, url: &str, model: &str| {
            providers.push(format!(
                "  - {{id: {provider}, protocol: {protocol}, baseUrl: {url}, class: apikey, models: [{model}]}}"
            ));
            connections.push(format!(
                "  - {{id: {provider}, provider: {provider}, maxConcurrent: 5, credential: {{file: one-a.key}}}}"
            ));
        };
        add("healthy-openai", "openai", &openai.base_url(), "m");
        add("healthy-anthropic", "anthropic", &anthropic.base_url(), "m");
        for fault in faults {
            for ask in ASKS {
                let provider = ask.provider(fault);
                let (protocol, url) = match ask.api {
                    Api::Chat | Api::Responses => ("openai", &one),
                    Api::Messages => ("anthropic", &claude),
                };
                add(&provider, protocol, url, fault.name);
                combos.push(format!(
                    "  - {{name: {provider}-first, steps: [{provider}/{}, healthy-{protocol}/m], config: {{maxRetries: 0}}}}",
                    fault.name
                ));
            }
        }
        format!(
            "providers:\n{}\nconnections:\n{}\ncombos:\n{}\n\
             keys:\n  - {{id: client, secret: {{file: client.key}}}}\n\
             settings:\n  streams: {{headersTimeoutMs: 2500, readinessTimeoutMs: 2500, idleTimeoutMs: 2500}}\n  \
             streamRecovery: {{attemptDeadlineMs: 6000}}\n  \
             waitForCooldown: {{enabled: false}}\n  comboCooldownWait: {{enabled: false}}\n",
            providers.join("\n"),
            connections.join("\n"),
            combos.join("\n"),
        )
    }

    /// Asks in one way for every fault; what the SDK said, in their order.
    async fn run(
        &self,
        clients: &PythonClients,
        ask: Ask,
        models: Vec<String>,
    ) -> Result<Vec<Value>> {
        let addr = self.world.data_plane(0)?;
        let base = match ask.api {
            Api::Chat | Api::Responses => format!("http://{addr}/v1"),
            Api::Messages => format!("http://{addr}"),
        };
        let count = models.len();
        let mut call = ClientCall::new(base, "", CLIENT_KEY)
            .models(models)
            .modes([ask.mode]);
        call.limit = SCRIPT_LIMIT;
        let run = clients.run(ask.script, &call).await?;
        ensure!(run.lines.len() == count, "{run:?}");
        Ok(run.lines)
    }

    /// Asks in every way for every fault, and compares.
    async fn compare(
        &self,
        faults: &[Fault],
        model: impl Fn(Ask, &Fault) -> String,
        expected: impl Fn(Ask, &Fault) -> Expected,
    ) -> Result<()> {
        let clients = &PythonClients::prepare().await?;
        let runs = ASKS.map(|ask| {
            let models = faults.iter().map(|fault| model(ask, fault)).collect();
            self.run(clients, ask, models)
        });
        let runs = futures::future::try_join_all(runs).await?;
        let mut wrong = Vec::new();
        for (ask, lines) in ASKS.into_iter().zip(runs) {
            for (fault, line) in faults.iter().zip(lines) {
                let (wanted, seen) = (expected(ask, fault), Seen::of(&line));
                if !wanted.is(&seen) {
                    wrong.push(format!(
                        "{}: expected {wanted:?}, saw {seen:?} in {line}",
                        ask.provider(fault)
                    ));
                }
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Nothing is left of any request, and each was sent once.
    async fn is_at_rest(&self, sent: u64) -> Result<()> {
        let plane = self.world.fleet.data_planes.first().context("a plane")?;
        eventually(LIMIT, "everything is finalised", || async {
            for gauge in ["requests_in_flight", "streams_open", "permits_held"] {
                let sample = format!("tidegate_dp_{gauge}");
                if metric(plane.admin, &sample).await.ok()? > 0.5 {
                    return None;
                }
            }
            Some(())
        })
        .await?;
        let upstreams = [&self.world.one, &self.world.claude];
        let count = upstreams.map(|upstream| upstream.log().count(&Selector::any()));
        assert_eq!(count.iter().sum::<u64>(), sent);
        Ok(())
    }
}

/// What an SDK made of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Class of the error.
    raised: Option<String>,
    status: Option<u64>,
    code: Option<String>,
    /// The beginning of the text that came, if any came.
    text: Option<String>,
}

impl Seen {
    fn of(line: &Value) -> Self {
        let text = |member: &str| line[member].as_str().map(str::to_owned);
        Self {
            raised: text("error"),
            status: line["status"].as_u64(),
            code: text("code"),
            text: text("text").filter(|text| !text.is_empty()),
        }
    }
}

/// What it must be.
#[derive(Debug)]
struct Expected {
    api: Api,
    end: End,
    opening: &'static str,
}

impl Expected {
    fn is(&self, seen: &Seen) -> bool {
        let begun = || {
            let text = seen.text.as_deref();
            text.is_some_and(|text| text.starts_with(self.opening))
        };
        let raised = seen.raised.as_deref();
        match self.end {
            End::Good => raised.is_none() && begun(),
            End::Refused(status, code) => {
                raised == Some(self.error_of(status))
                    && seen.status == Some(u64::from(status))
                    && seen.code.as_deref() == Some(code)
                    && seen.text.is_none()
            }
            End::Broken(code) => {
                let began_well = seen.text.is_none() || begun();
                began_well && raised == Some(self.in_band()) && seen.code.as_deref() == Some(code)
            }
            End::UpstreamsOwn => raised == Some(self.in_band()) && begun(),
            End::Unreadable => raised.is_some() && seen.status.is_none_or(|status| status == 200),
        }
    }

    /// The class of an error with a status.
    fn error_of(&self, status: u16) -> &'static str {
        match (self.api, status) {
            (Api::Messages, 504) => "GatewayTimeoutError",
            (Api::Messages, 529) => "OverloadedError",
            _ => "InternalServerError",
        }
    }

    /// The class of an error inside a stream.
    fn in_band(&self) -> &'static str {
        match self.api {
            Api::Chat => "APIError",
            // The SDK yields it; the script raises.
            Api::Responses => "InBandError",
            Api::Messages => "APIStatusError",
        }
    }
}

#[tokio::test]
async fn every_fault_of_the_only_provider_reaches_the_sdk_as_specified() -> Result<()> {
    let faults = faults();
    let stage = stage(&faults).await?;
    let model = |ask: Ask, fault: &Fault| format!("{}/{}", ask.provider(fault), fault.name);
    let expected = |ask: Ask, fault: &Fault| Expected {
        api: ask.api,
        end: ask.expected(fault),
        opening: "ahoy",
    };
    stage.compare(&faults, model, expected).await?;
    stage.is_at_rest((faults.len() * ASKS.len()) as u64).await
}

#[tokio::test]
async fn a_healthy_second_provider_hides_every_fault_before_the_answer() -> Result<()> {
    let faults = faults();
    let stage = stage(&faults).await?;
    let model = |ask: Ask, fault: &Fault| format!("{}-first", ask.provider(fault));
    let expected = |ask: Ask, fault: &Fault| match ask.expected(fault) {
        End::Refused(..) => Expected {
            api: ask.api,
            end: End::Good,
            opening: HEALTHY,
        },
        end => Expected {
            api: ask.api,
            end,
            opening: "ahoy",
        },
    };
    stage.compare(&faults, model, expected).await?;
    stage.is_at_rest((faults.len() * ASKS.len()) as u64).await
}
