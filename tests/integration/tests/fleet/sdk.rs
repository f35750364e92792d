//! The official SDKs as clients.

use anyhow::Result;
use tidegate_integration::{CLIENT_KEY, World};
use tidegate_test_support::{ClientCall, PythonClients};

#[tokio::test]
async fn official_sdks_work_against_every_data_plane() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let world = World::start().await?;
    for plane in 0..2 {
        let addr = world.data_plane(plane)?;
        let call = ClientCall::new(format!("http://{addr}/v1"), "main", CLIENT_KEY).modes([
            "json",
            "stream",
            "responses",
            "responses_stream",
            "embeddings",
            "models",
        ]);
        let run = clients.run("openai_chat.py", &call).await?;
        assert!(run.ok, "{run:?}");

        let call = ClientCall::new(format!("http://{addr}"), "claude/m", CLIENT_KEY)
            .modes(["json", "stream"]);
        let run = clients.run("anthropic_messages.py", &call).await?;
        assert!(run.ok, "{run:?}");

        let call = ClientCall::new(format!("http://{addr}/v1"), "main", CLIENT_KEY);
        let run = clients.run("sse_wire.py", &call).await?;
        assert!(run.ok, "{run:?}");
    }
    Ok(())
}

#[tokio::test]
async fn official_sdks_raise_their_own_errors() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let world = World::start().await?;
    let addr = world.data_plane(0)?;

    let call = ClientCall::new(format!("http://{addr}/v1"), "no-such-model", CLIENT_KEY)
        .modes(["json", "stream"]);
    let run = clients.run("openai_chat.py", &call).await?;
    for mode in ["json", "stream"] {
        assert_eq!(run.mode(mode)["error"], "NotFoundError", "{run:?}");
        assert_eq!(run.mode(mode)["code"], "model_not_found", "{run:?}");
    }

    let call = ClientCall::new(format!("http://{addr}/v1"), "main", "wrong").modes(["json"]);
    let run = clients.run("openai_chat.py", &call).await?;
    assert_eq!(run.mode("json")["error"], "AuthenticationError", "{run:?}");

    let call = ClientCall::new(format!("http://{addr}"), "claude/m", "wrong").modes(["json"]);
    let run = clients.run("anthropic_messages.py", &call).await?;
    assert_eq!(run.mode("json")["error"], "AuthenticationError", "{run:?}");
    Ok(())
}
