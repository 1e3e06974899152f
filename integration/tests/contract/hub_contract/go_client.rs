//! The Go client in `clients/go`: it is what the generator makes of the present document, and it can be used.

use std::path::{Path, PathBuf};

use integration::programs;
use tokio::process::Command;

use crate::hub_contract::world::{TOKEN, description, folder, guarded_hub, run, succeed};

fn client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/go")
}

#[test]
fn the_go_client_is_what_the_generator_makes_of_the_description() {
    run(async {
        let hub = guarded_hub("generated").await;
        let folder = folder("generated");
        let (document, made) = (folder.join("openapi.json"), folder.join("client.gen.go"));
        std::fs::write(&document, description(&hub).await.to_string()).expect("a file");
        let mut generator = Command::new(programs::client_generator().await.expect("the generator"));
        generator.arg("--config").arg(client().join("generator/config.yaml")).arg("-o").arg(&made).arg(&document);
        succeed(&mut generator).await;
        let checked_in = client().join("client.gen.go");
        if std::env::var_os("UPDATE_CLIENTS").is_some() {
            std::fs::copy(&made, &checked_in).expect("to write the client");
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        assert!(read(&made) == read(&checked_in), "clients/go/client.gen.go is outdated: run `make clients`");
    });
}

#[test]
fn the_go_client_drives_a_hub() {
    run(async {
        let hub = guarded_hub("driven").await;
        let mut tests = Command::new("go");
        tests.args(["test", "-count=1", "./..."]).current_dir(client());
        tests.env("TOWLINE_HUB", format!("http://{}", hub.api())).env("TOWLINE_TOKEN", TOKEN);
        // The installed Go or none, and no other module has a say.
        tests.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "-mod=readonly");
        succeed(&mut tests).await;
    });
}
