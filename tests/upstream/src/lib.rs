//! A fake LLM provider on a loopback port, for tests and for the demo.
//!
//! It speaks enough of the OpenAI API (`/v1/chat/completions`, `/v1/responses`, `/v1/embeddings`, `/v1/models`) and of
//! the Anthropic API (`/v1/messages`) that the official SDKs are content, streaming or not, and it fails in the ways
//! real providers fail: see [`Mode`]. What it does is chosen at run time, for all requests or by model, credential
//! and path ([`Selector`]), for good or as a script ([`Behaviour`]). It remembers what it was asked ([`RequestLog`]).
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use tidegate_fake_upstream::{FakeUpstream, Mode, Selector};
//!
//! let upstream = FakeUpstream::start().await?;
//! upstream.set(Selector::any(), Mode::rate_limited("7"));
//! upstream.set(Selector::any().model("good-model"), Mode::Ok);
//! upstream.set(Selector::any().credential("sk-b"), [Mode::status(503), Mode::Reset]);
//! assert_eq!(upstream.log().count(&Selector::any()), 0);
//! # Ok(())
//! # }
//! ```

mod answer;
mod behaviour;
mod connection;
mod encode;
mod handle;
mod log;
mod mode;
mod paced_body;
mod reply;
mod selector;
mod server;
mod token_endpoint;
mod window;
mod wire;

pub use behaviour::Behaviour;
pub use log::{Ending, RecordedRequest, RequestLog};
pub use mode::{Closing, Encoding, Gate, Mode};
pub use reply::Reply;
pub use selector::Selector;
pub use server::{FakeUpstream, FakeUpstreamBuilder};
pub use token_endpoint::{TokenEndpoint, TokenMode, TokenRequest};
pub use window::Window;
