//! The log: lines on standard error, as text for people or as JSON for machines.
//!
//! Messages are constant and in lower case; variable parts are fields. ERROR: an operator must act. WARN: unexpected and
//! recovered. INFO: lifecycle and leadership. DEBUG: per object. TRACE: payloads, redacted.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat};

/// kube's client logs the whole body of an answer that it can't decode at WARN, which may be a list of Secrets, and its
/// watcher logs errors as whole structures, which our watch logs as a sentence; so does lapin, and who uses it gets them. A filter that names these targets overrides
/// this.
const QUIET: &str = "kube_client=error,kube_runtime=error,lapin=off";

#[derive(Debug, thiserror::Error)]
pub enum InstallLog {
    /// The filter's directives don't parse. The configuration has refused such filters before.
    #[error("failed to parse the log filter")]
    Filter(#[source] ParseError),
    #[error("failed to install the log")]
    Installed(#[source] TryInitError),
}

/// Starts the log of this process. Once per process.
pub fn install(config: &LogConfig) -> Result<(), InstallLog> {
    // https://no-color.org
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    subscriber(config, std::io::stderr, std::io::stderr().is_terminal() && !wants_none)
        .map_err(InstallLog::Filter)?
        .try_init()
        .map_err(InstallLog::Installed)
}

fn subscriber<W>(config: &LogConfig, writer: W, colours: bool) -> Result<Box<dyn Subscriber + Send + Sync>, ParseError>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(format!("{QUIET},{}", config.filter))?)
        .with_writer(writer);
    Ok(match config.format {
        LogFormat::Text => Box::new(builder.with_ansi(colours).finish()),
        // One flat object per line, with the innermost span as `span`.
        LogFormat::Json => Box::new(builder.json().flatten_event(true).with_span_list(false).finish()),
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let config = LogConfig { format, filter: filter.to_owned() };
        let subscriber = subscriber(&config, move || writer.clone(), false).expect("a well-formed filter");
        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!("sync", section = "databases").entered();
            tracing::info!(cluster = "hub", "cluster reached");
            tracing::debug!("not for everyone");
            tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403: Api(Status {{ status: Some(Failure) }})");
        });
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn json_lines_are_flat_objects_with_their_span() {
        let text = logged(LogFormat::Json, "info");
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one JSON object");
        assert_eq!(line["message"], "cluster reached");
        assert_eq!(line["cluster"], "hub");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["span"]["section"], "databases");
    }

    #[test]
    fn text_lines_have_no_colours_where_nobody_looks() {
        let text = logged(LogFormat::Text, "info");
        assert!(text.contains("cluster reached cluster=\"hub\""), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn the_filter_decides_what_is_written() {
        assert!(!logged(LogFormat::Text, "info").contains("not for everyone"));
        assert!(logged(LogFormat::Text, "debug").contains("not for everyone"));
        assert_eq!(logged(LogFormat::Text, "off"), "");
    }

    #[test]
    fn kube_s_structures_are_left_out_unless_the_filter_names_them() {
        for filter in ["info", "debug", "trace", "warn,towline=debug"] {
            assert!(!logged(LogFormat::Text, filter).contains("Api(Status"), "{filter}");
        }
        for filter in ["info,kube_runtime=debug", "kube_runtime::watcher=warn", "info,kube_runtime::watcher=debug"] {
            assert!(logged(LogFormat::Text, filter).contains("Api(Status"), "{filter}");
        }
    }
}
