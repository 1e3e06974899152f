//! Credential plugins: those of kubectl (`exec`), and the older `auth-provider` with a command.
//!
//! kube would run them on the calling thread, twice for each load, and without a deadline. Here the process runs
//! concurrently and has a deadline. Its process group is killed when the deadline has passed or nobody waits any more, so
//! that no child process stays behind. Its output is read up to a limit and never printed, because it has credentials in
//! it. It gets no terminal and no input.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use kube::config::{AuthProviderConfig, ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::yaml;

/// The most bytes of output. Credentials have a few kilobytes.
const MOST_PRINTED: u64 = 1 << 20;
/// The most bytes that are built of it, about.
const MOST_BUILT: usize = 16 << 20;

#[derive(Clone)]
pub(in crate::cluster) enum Plugin {
    /// With kubectl's interface.
    Exec(Box<ExecConfig>),
    /// Any command that prints a token, or JSON with a token in it.
    Provider(Box<AuthProviderConfig>),
}

pub(in crate::cluster) struct Issued {
    pub(in crate::cluster) token: Option<SecretString>,
    /// A client certificate and its key, as PEM.
    pub(in crate::cluster) certificate: Option<(String, SecretString)>,
    /// When they expire; `None`: they are used until they are refused.
    pub(in crate::cluster) expires: Option<SystemTime>,
}

/// Why a plugin issued nothing. Neither its command line nor its output is repeated.
#[derive(Debug, thiserror::Error)]
pub(in crate::cluster) enum PluginError {
    #[error("the kubeconfig names no command for credentials")]
    NoCommand,
    #[error(
        "the kubeconfig's command for credentials wants a terminal (`interactiveMode: Always`), which a daemon has not"
    )]
    Interactive,
    #[error("failed to start the kubeconfig's command for credentials: {0}")]
    Start(std::io::Error),
    #[error("failed to read from the kubeconfig's command for credentials: {0}")]
    Read(std::io::Error),
    #[error("the kubeconfig's command for credentials failed ({0})")]
    Failed(ExitStatus),
    #[error("the kubeconfig's command for credentials did not end within {} and was killed", humantime::format_duration(*.0))]
    TooLong(Duration),
    #[error("the kubeconfig's command for credentials printed more than 1 MiB")]
    TooMuch,
    #[error("the kubeconfig's command for credentials printed something else{0}")]
    NotCredentials(String),
    #[error("the kubeconfig's command for credentials printed no credentials")]
    Nothing,
    #[error("the kubeconfig's command for credentials printed an expiry that is no time")]
    Expiry,
}

impl Plugin {
    /// Runs the command and reads what it issues.
    pub(in crate::cluster) async fn issue(&self, deadline: Duration) -> Result<Issued, PluginError> {
        let printed = match tokio::time::timeout(deadline, run(self.command()?)).await {
            Ok(printed) => printed?,
            Err(_) => return Err(PluginError::TooLong(deadline)),
        };
        match self {
            Self::Exec(_) => of_exec(&printed),
            Self::Provider(provider) => of_provider(provider, &printed),
        }
    }

    fn command(&self) -> Result<Command, PluginError> {
        match self {
            Self::Exec(exec) => {
                let mut command = Command::new(exec.command.as_ref().ok_or(PluginError::NoCommand)?);
                if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
                    return Err(PluginError::Interactive);
                }
                command.args(exec.args.iter().flatten());
                for variable in exec.env.iter().flatten() {
                    if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                        command.env(name, value);
                    }
                }
                let mut spec = json!({"interactive": false});
                if exec.provide_cluster_info
                    && let (Some(spec), Some(cluster)) = (spec.as_object_mut(), &exec.cluster)
                {
                    spec.insert("cluster".into(), serde_json::to_value(cluster).unwrap_or_default());
                }
                let asked = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
                command.env("KUBERNETES_EXEC_INFO", asked.to_string());
                for name in exec.drop_env.iter().flatten() {
                    command.env_remove(name);
                }
                Ok(command)
            }
            Self::Provider(provider) => {
                let setting = |name: &str| provider.config.get(name).map(String::as_str).unwrap_or_default();
                let mut command = Command::new(provider.config.get("cmd-path").ok_or(PluginError::NoCommand)?);
                command.args(setting("cmd-args").split_whitespace());
                for name in setting("cmd-drop-env").split_whitespace() {
                    command.env_remove(name);
                }
                Ok(command)
            }
        }
    }
}

/// A process in its own process group, which is killed when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // None once it has been waited for: another process may have the id by then.
        let id = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id
            && let Err(error) = kill_process_group(id, Signal::KILL)
        {
            tracing::debug!(%error, "command for credentials was not killed");
        }
    }
}

async fn run(mut command: Command) -> Result<Vec<u8>, PluginError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).kill_on_drop(true);
    let mut group = Group(command.spawn().map_err(PluginError::Start)?);
    let mut printed = Vec::new();
    if let Some(output) = group.0.stdout.take() {
        output.take(MOST_PRINTED + 1).read_to_end(&mut printed).await.map_err(PluginError::Read)?;
    }
    if printed.len() as u64 > MOST_PRINTED {
        return Err(PluginError::TooMuch);
    }
    let status = group.0.wait().await.map_err(PluginError::Read)?;
    if status.success() { Ok(printed) } else { Err(PluginError::Failed(status)) }
}

/// The output of a plugin: <https://kubernetes.io/docs/reference/config-api/client-authentication.v1/>.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// JSON, or YAML, which client-go accepts too.
fn of_exec(printed: &[u8]) -> Result<Issued, PluginError> {
    let printed = std::str::from_utf8(printed).map_err(|_| PluginError::NotCredentials(String::new()))?;
    let printed: ExecCredential = yaml::one(printed, MOST_BUILT).map_err(|error| match error {
        yaml::Error::Documents(0) => PluginError::Nothing,
        other => PluginError::NotCredentials(format!(": {other}")),
    })?;
    let status = printed.status.ok_or(PluginError::Nothing)?;
    let certificate = status.client_certificate_data.zip(status.client_key_data.map(SecretString::from));
    let token = status.token.filter(|token| !token.is_empty()).map(SecretString::from);
    if token.is_none() && certificate.is_none() {
        return Err(PluginError::Nothing);
    }
    let expires = status.expiration_timestamp.map(|text| time(&text)).transpose()?;
    Ok(Issued { token, certificate, expires })
}

fn of_provider(provider: &AuthProviderConfig, printed: &[u8]) -> Result<Issued, PluginError> {
    let not_credentials = || PluginError::NotCredentials(String::new());
    let Some(token_key) = provider.config.get("token-key") else {
        let token = std::str::from_utf8(printed).map_err(|_| not_credentials())?;
        return Ok(Issued { token: Some(token.to_owned().into()), certificate: None, expires: None });
    };
    let printed: Value = serde_json::from_slice(printed).map_err(|_| not_credentials())?;
    let token = field(&printed, token_key).ok_or(PluginError::Nothing)?.to_owned();
    let expires = provider.config.get("expiry-key").map(|key| field(&printed, key).ok_or(PluginError::Expiry));
    let expires = expires.transpose()?.map(time).transpose()?;
    Ok(Issued { token: Some(token.into()), certificate: None, expires })
}

/// The text at a path as kubectl writes it: `{.credential.access_token}`.
fn field<'a>(printed: &'a Value, path: &str) -> Option<&'a str> {
    let path = path.trim_matches(|character| matches!(character, '"' | '{' | '}')).trim_start_matches(['$', '.']);
    path.split('.').try_fold(printed, |value, name| value.get(name))?.as_str()
}

fn time(text: &str) -> Result<SystemTime, PluginError> {
    text.parse::<Timestamp>().map(SystemTime::from).map_err(|_| PluginError::Expiry)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use secrecy::ExposeSecret;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn shell(script: &str) -> Plugin {
        let exec = ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".into()),
            command: Some("sh".into()),
            args: Some(vec!["-c".into(), script.into()]),
            env: Some(vec![HashMap::from([
                ("name".to_owned(), "CANARY".to_owned()),
                ("value".to_owned(), "canary".to_owned()),
            ])]),
            ..ExecConfig::default()
        };
        Plugin::Exec(Box::new(exec))
    }

    #[tokio::test]
    async fn a_plugin_is_asked_as_kubectl_asks_and_its_credentials_are_read() {
        let script = r#"printf '{"status": {"token": "%s-%s", "expirationTimestamp": "2030-01-02T03:04:05.5+01:00"}}' \
            "$CANARY" "$(printf %s "$KUBERNETES_EXEC_INFO" | cksum | cut -d' ' -f1)""#;
        let issued = shell(script).issue(LONG).await.unwrap();
        let token = issued.token.unwrap();
        assert!(token.expose_secret().starts_with("canary-"), "{}", token.expose_secret());
        let expires = humantime::format_rfc3339_seconds(issued.expires.unwrap()).to_string();
        assert_eq!(expires, "2030-01-02T02:04:05Z");
        let yaml = "echo 'status:'; echo '  clientCertificateData: cert'; echo '  clientKeyData: key'";
        let (certificate, key) = shell(yaml).issue(LONG).await.unwrap().certificate.unwrap();
        assert_eq!((certificate.as_str(), key.expose_secret()), ("cert", "key"));
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_killed_with_its_child_processes() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let script = format!("sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
        let plugin = shell(&script);
        let mut asked = Box::pin(plugin.issue(LONG));
        let told = loop {
            tokio::select! {
                _ = &mut asked => panic!("it ended"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
            let told = std::fs::read_to_string(&pids).unwrap_or_default();
            if told.lines().count() == 2 {
                break told;
            }
        };
        drop(asked);
        for pid in told.lines() {
            let runs = || {
                let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                // The state follows the name in parentheses; Z is a zombie.
                state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
            };
            while runs() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let error = shell("sleep 1000").issue(Duration::from_millis(50)).await.err().unwrap();
        assert!(error.to_string().contains("did not end within 50ms"), "{error}");
    }

    #[tokio::test]
    async fn the_output_of_a_plugin_is_not_printed() {
        for (script, told) in [
            ("echo $CANARY; echo $CANARY >&2; exit 3", "failed (exit status: 3)"),
            ("echo $CANARY", "printed something else"),
            ("echo '{\"status\": {\"expirationTimestamp\": \"canary\", \"token\": \"canary\"}}'", "no time"),
            ("echo '{\"kind\": \"canary\"}'", "printed no credentials"),
            ("yes canary", "more than 1 MiB"),
        ] {
            let error = shell(script).issue(LONG).await.err().expect(script).to_string();
            assert!(error.contains(told) && !error.contains("canary"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_older_provider_s_command_is_run_and_its_paths_are_followed() {
        let of = |settings: &[(&str, &str)]| {
            let config = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Plugin::Provider(Box::new(AuthProviderConfig {
                name: "gcp".into(),
                config,
                ..AuthProviderConfig::default()
            }))
        };
        let printed = r#"{"credential":{"access_token":"canary","token_expiry":"2030-01-01T00:00:00Z"}}"#;
        let provider = of(&[
            ("cmd-path", "echo"),
            ("cmd-args", printed),
            ("token-key", "{.credential.access_token}"),
            ("expiry-key", "{.credential.token_expiry}"),
        ]);
        let issued = provider.issue(LONG).await.unwrap();
        assert_eq!(issued.token.unwrap().expose_secret(), "canary");
        assert!(issued.expires.is_some());
        let issued = of(&[("cmd-path", "echo"), ("cmd-args", "canary")]).issue(LONG).await.unwrap();
        assert_eq!(issued.token.unwrap().expose_secret(), "canary\n");
    }
}
