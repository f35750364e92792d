//! Who shows nothing at a process with a token of operators, which serves all of its HTTP paths on one listener.

use anyhow::{Context as _, Result, ensure};
use tidegate_control::plane::grpc_methods;
use tidegate_integration::strangers::{self, Door};
use tidegate_integration::{chat, send};
use tidegate_proxy::{Guard, served};
use tidegate_test_support::ADMIN_TOKEN;
use tidegate_test_support::upstream::Selector;

use super::Standalone;

/// gRPC statuses.
const UNIMPLEMENTED: u16 = 12;
const UNAUTHENTICATED: u16 = 16;

#[tokio::test]
async fn strangers_get_nowhere() -> Result<()> {
    let env = [("TIDEGATE_ADMIN_TOKEN", ADMIN_TOKEN)];
    let standalone = Standalone::start_as(&env, &[], |document| document).await?;
    // Somebody gets in.
    ensure!(chat(standalone.http, "main").await?.status == 200);
    let settings = http::Request::get(format!("http://{}/api/resilience", standalone.http))
        .header("authorization", format!("Bearer {ADMIN_TOKEN}"));
    ensure!(send(settings.body(Default::default())?).await?.status == 200);
    let before = standalone.openai.log().count(&Selector::any());

    let doors: Vec<Door> = served()
        .map(|served| Door {
            addr: standalone.http,
            path: served.path,
            allow: served.allow,
            status: match served.guard {
                Guard::Nobody => 200,
                Guard::Key | Guard::LeaseKey | Guard::ControlPlane => 401,
            },
        })
        .collect();
    ensure!(doors.len() > 20, "{doors:?}");
    strangers::get_nowhere(&doors).await?;
    ensure!(standalone.openai.log().count(&Selector::any()) == before);

    // Over gRPC there is what operators may call, and nothing of what data planes do.
    let mut refused = 0;
    for method in grpc_methods() {
        let path = method.path.as_str();
        let status = strangers::grpc_status(standalone.grpc, path).await;
        let status = status.context(method.path.clone())?;
        let is_for_operators = ["admin", "grpc"].iter().any(|part| path.contains(part));
        if method.is_for_everybody {
            ensure!(status != Some(UNAUTHENTICATED), "{path}: {status:?}");
        } else if is_for_operators {
            ensure!(status == Some(UNAUTHENTICATED), "{path}: {status:?}");
            refused += 1;
        } else {
            ensure!(status == Some(UNIMPLEMENTED), "{path}: {status:?}");
        }
    }
    ensure!(refused > 30, "{refused}");
    Ok(())
}
