//! What others rely on, told by programs that know nothing else of it: the API's document, templates, `deploy/`, and the fixtures of the other tests.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

mod chart;
mod completions;
mod deploy;
mod fixtures;
mod health;
mod hub_contract;
mod installed;
mod start;
mod templates;

use std::future::Future;
use std::sync::LazyLock;

use integration::Postgres;
use integration::postgres::Transport;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// The token of all rights at a hub with [`HUB_TOKENS`].
const HUB_TOKEN: &str = "sesame";
/// It has what `sha256sum` prints of the token.
const HUB_TOKENS: &str = "tester admin * d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272\n";
/// 32 bytes in base64.
const HUB_KEYS: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

/// The database server that tests share; each has databases of its own.
async fn database_server() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER.get_or_init(async || Postgres::start("contract", Transport::Plain).await.unwrap()).await
}
