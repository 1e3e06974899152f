//! Which error a failed request or an answer that is not a success is, and what is safe to print of it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::client::AuthError;
use kube::config::KubeconfigError;
use kube::core::Status;
use kube::core::response::StatusCause;

use super::Error;
use crate::cluster::Verb;
use crate::cluster::fence::Expired;
use crate::config::ClusterName;
use crate::config::text::{cut, one_line};
use crate::http::{Denied, Unresolved};

/// The request, for the errors that name it.
#[derive(Debug, Clone, Copy)]
pub(in crate::cluster) struct Asked<'a> {
    pub cluster: &'a ClusterName,
    pub verb: Verb,
    /// `plural.group`, with `/subresource`.
    pub resource: &'a str,
    /// The object's name, if the request names one.
    pub name: Option<&'a str>,
}

/// Why a request has no answer that can be used. Where it comes from an error, it keeps that as its source, and its text is
/// that of the whole chain: in plain words if it is a usual error of the operating system.
#[derive(Clone)]
pub struct Cause {
    text: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Cause {
    /// From an error whose text is safe to print.
    pub(crate) fn of(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { text: source.to_string().into(), source: Some(Arc::new(source)) }
    }

    fn of_exchange(source: kube::Error) -> Self {
        let plain = chain(&source).find_map(plain_words);
        let text = plain.unwrap_or_else(|| full_text(innermost(&source))).into();
        Self { text, source: Some(Arc::new(source)) }
    }

    /// Whether it may be shown to somebody who chose the server's address: that the address itself is denied, or that a server speaks TLS and
    /// can't be trusted or does not trust us. Of a name it would say that it has addresses.
    pub(super) fn is_public(&self) -> bool {
        let Some(source) = &self.source else { return false };
        chain(source.as_ref()).any(|error| {
            use rustls::Error::{AlertReceived, InvalidCertificate};
            matches!(error.downcast_ref(), Some(Denied::Address { .. }))
                || matches!(error.downcast_ref(), Some(InvalidCertificate(_) | AlertReceived(_)))
        })
    }
}

/// Without a source.
impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self { text: text.into(), source: None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Prints no more than the text does.
impl fmt::Debug for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.text)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl Asked<'_> {
    /// Classifies an error of the HTTP stack.
    pub(in crate::cluster) fn failed(&self, error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => self.refused(&status, asked_delay(&status)),
            kube::Error::SerdeError(source) => Error::Decode { source: Cause::of(source) },
            kube::Error::FromUtf8(source) => Error::Decode { source: Cause::of(source) },
            other => {
                if let Some(expired) = cause::<Expired>(&other) {
                    return Error::LeaseExpired(expired.clone());
                }
                let cluster = self.cluster.clone();
                let connecting = is_connect(&other);
                let source = Cause::of_exchange(other);
                if connecting { Error::Connect { cluster, source } } else { Error::NoAnswer { cluster, source } }
            }
        }
    }

    /// Classifies an answer that is not a success.
    pub(in crate::cluster) fn refused(&self, status: &Status, retry_after: Option<Duration>) -> Error {
        let message = message_of(status);
        let cause = |reason: &str| {
            status.details.as_ref().is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
        };
        match status.code {
            401 => Error::Unauthorized { cluster: self.cluster.clone(), message },
            403 if cause("NamespaceTerminating") => Error::NamespaceTerminating { message },
            403 => Error::Forbidden {
                cluster: self.cluster.clone(),
                verb: self.verb,
                resource: self.resource.to_owned(),
                message,
            },
            404 => {
                // Only a Status that names this very object is about the object.
                let names_it = status.reason == "NotFound"
                    && status
                        .details
                        .as_ref()
                        .is_some_and(|details| !details.name.is_empty() && Some(details.name.as_str()) == self.name);
                let of_namespace =
                    status.reason == "NotFound" && status.details.as_ref().is_some_and(|of| of.kind == "namespaces");
                // So an API server answers that does not know the path.
                let message = if message == NO_STATUS { NO_RESOURCE.to_owned() } else { message };
                if names_it { Error::NotFound { message } } else { Error::NotServed { message, of_namespace } }
            }
            409 => Error::Conflict { message, exists: status.reason == "AlreadyExists" },
            code @ 429 => Error::Throttled { code, message, retry_after },
            500 if SCHEMA_MISMATCHES.iter().any(|text| status.message.contains(text)) => {
                Error::SchemaMismatch { message }
            }
            code @ 500..=599 if retry_after.is_some() => Error::Throttled { code, message, retry_after },
            code @ 500..=599 => Error::Server { code, message },
            code => Error::Rejected { code, reason: status.reason.clone(), message },
        }
    }
}

/// By these texts alone a server-side apply of content that does not fit the schema differs from a fault of the server.
const SCHEMA_MISMATCHES: [&str; 2] = ["failed to create typed patch object", "failed to convert new object"];

/// The most bytes of an untrusted server's message.
const LONGEST_UNTRUSTED: usize = 1024;

/// The message of a server whose kubeconfig was written by a user of an API. About a Secret it is the code, the reason and the
/// names of the fields: the server's own text quotes values.
pub(in crate::cluster) fn cautious_message(status: &Status, resource: &str) -> String {
    if status.message == NO_STATUS {
        return format!("HTTP {}, not a Kubernetes API", status.code);
    }
    if resource != "secrets" {
        let text = of_causes(status).map_or_else(|| Cow::Borrowed(without_got(&status.message)), Cow::Owned);
        return harmless(&text);
    }
    let mut text = format!("HTTP {} {}", status.code, status.reason);
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).filter(|field| !field.is_empty()).collect();
    if !fields.is_empty() {
        text.push_str(": ");
        text.push_str(&fields.join(", "));
    }
    harmless(&text)
}

/// What is wrong with an invalid object: each field with its fault. The server's own message quotes the values, which may be those of a
/// `ConfigMap`, or the whole object before it comes to the reason.
fn of_causes(status: &Status) -> Option<String> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let (object, _) = status.message.split_once(" is invalid: ")?;
    if status.code != 422 || causes.is_empty() {
        return None;
    }
    let fault = |cause: &StatusCause| {
        let field = if cause.field.is_empty() { String::new() } else { format!("{}: ", cause.field) };
        format!("{field}{}", without_value(&cause.message))
    };
    let faults: Vec<String> = causes.iter().map(fault).collect();
    Some(format!("{object} is invalid: {}", faults.join(", ")))
}

/// A fault without the value that it quotes, as Kubernetes writes it: `Invalid value: "x": must be …`. Numbers and booleans stay.
fn without_value(fault: &str) -> String {
    let Some((kind, rest)) = fault.split_once(": ") else { return fault.to_owned() };
    let behind = match rest.bytes().next() {
        Some(b'"') => {
            let mut is_escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, letter)| {
                let ends = *letter == '"' && !is_escaped;
                is_escaped = *letter == '\\' && !is_escaped;
                ends
            });
            end.and_then(|(end, _)| rest.get(end + 1..)).unwrap_or_default()
        }
        Some(b'{' | b'[') => {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
            match values.next() {
                Some(Ok(_)) => rest.get(values.byte_offset()..).unwrap_or_default(),
                _ => behind_last_brace(rest),
            }
        }
        // A value of Go: `core.PodTemplateSpec{…}`.
        _ if rest.find('{').is_some_and(|at| rest.get(..at).is_some_and(|kind| !kind.contains(' '))) => {
            behind_last_brace(rest)
        }
        _ => return fault.to_owned(),
    };
    match behind.strip_prefix(": ") {
        Some(detail) => format!("{kind}: {detail}"),
        None => kind.to_owned(),
    }
}

/// What follows a value that ends with a brace, `: ` included.
fn behind_last_brace(text: &str) -> &str {
    let end = text.rfind("}: ").or_else(|| text.rfind("]: "));
    end.and_then(|end| text.get(end + 1..)).unwrap_or_default()
}

/// A message of server-side apply without the values that it found in place of others. A value may be any text, so all behind the first
/// is left out.
fn without_got(message: &str) -> &str {
    match message.split_once(", got ") {
        Some((head, _)) if head.contains(": expected ") => head,
        _ => message,
    }
}

/// A text without control characters, of at most 1,024 bytes: its beginning and its end, where servers tell the reason.
pub fn harmless(text: &str) -> String {
    const CUT: &str = " … ";
    const TAIL: usize = 384;
    let text = one_line(text);
    let text = text.trim();
    if text.len() <= LONGEST_UNTRUSTED {
        return text.to_owned();
    }
    let head = (0..=LONGEST_UNTRUSTED - TAIL - CUT.len()).rev().find(|at| text.is_char_boundary(*at));
    let tail = (text.len() - TAIL..=text.len()).find(|at| text.is_char_boundary(*at));
    let part = |from, to| text.get(from..to).unwrap_or_default();
    format!("{}{CUT}{}", part(0, head.unwrap_or(0)), part(tail.unwrap_or(text.len()), text.len()))
}

/// The message of an answer that is no `Status`.
pub(in crate::cluster) const NO_STATUS: &str = "the answer has no Status of Kubernetes";
/// The message of a 404 that is no `Status`. Most often the definition of the kind is missing.
const NO_RESOURCE: &str = "the API server does not know this kind in this version: install what defines it (a proxy in between may also answer so)";
/// The length up to which a server's message is repeated, in characters. It lists all faults of a rejected object.
const LONGEST_MESSAGE: usize = 2048;
/// kube's reason for a status whose message is the whole body.
const KUBE_DECODED_NOTHING: &str = "Failed to parse error data";

/// The part of a refusal that is repeated: the beginning of the server's own message, and nothing of any other body.
fn message_of(status: &Status) -> String {
    if status.reason == KUBE_DECODED_NOTHING {
        return NO_STATUS.to_owned();
    }
    cut(&status.message, LONGEST_MESSAGE)
}

/// The delay that a status asks for, if the header is not available.
fn asked_delay(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds).min(60)))
}

/// An error with its sources, joined by `: `, without repetitions. If a source quotes credentials, only what is safe to
/// print of it: the errors around it repeat its text.
pub fn full_text(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(text) = without_credentials(error) {
        return text;
    }
    let mut text = error.to_string();
    let mut source = if error.is::<Cause>() { None } else { error.source() };
    while let Some(inner) = source {
        let part = inner.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        // Its text is that of its sources, in other words.
        source = if inner.is::<Cause>() { None } else { inner.source() };
    }
    text
}

/// What may be printed of an error that quotes credentials: a parser quotes the text around the fault, a credential plugin
/// has printed them, and its command line has its environment in it.
fn without_credentials(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(inner) = next {
        if let Some(KubeconfigError::Parse(source)) = inner.downcast_ref() {
            return Some(match source.location() {
                Some(at) => format!("not a kubeconfig (line {}, column {})", at.line(), at.column()),
                None => "not a kubeconfig".into(),
            });
        }
        match inner.downcast_ref() {
            Some(AuthError::AuthExecRun { out, .. }) => {
                return Some(format!("the kubeconfig's command for credentials failed ({})", out.status));
            }
            Some(AuthError::AuthExecParse(source)) => {
                let at = source.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
                let at = at.unwrap_or_default();
                return Some(format!("the kubeconfig's command for credentials printed something else{at}"));
            }
            _ => {}
        }
        next = inner.source();
    }
    None
}

/// Why there is no connection, in plain words, if this error is one of the usual ones: of a denied network, of a name, of TLS, or of the
/// operating system.
fn plain_words(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(denied) = error.downcast_ref::<Denied>() {
        return Some(denied.to_string());
    }
    if let Some(unresolved) = error.downcast_ref::<Unresolved>() {
        return Some(unresolved.to_string());
    }
    if let Some(fault) = error.downcast_ref::<rustls::Error>() {
        return Some(of_tls(fault));
    }
    plain_reason(error.downcast_ref()?).map(str::to_owned)
}

/// The operating system's error in plain words, if it is one of the usual ones.
fn plain_reason(error: &std::io::Error) -> Option<&'static str> {
    use std::io::ErrorKind;
    Some(match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset => "connection reset",
        ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => "connection broken",
        ErrorKind::TimedOut => "connection timed out",
        ErrorKind::HostUnreachable => "host unreachable",
        ErrorKind::NetworkUnreachable => "network unreachable",
        _ => return None,
    })
}

/// A fault of TLS in plain words. The names in a server's certificate are not repeated: they are of its choice.
fn of_tls(fault: &rustls::Error) -> String {
    use rustls::{CertificateError, Error};
    match fault {
        Error::InvalidCertificate(fault) => match fault {
            CertificateError::UnknownIssuer => "the server's certificate is signed by an unknown authority".to_owned(),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another name".to_owned()
            }
            other => format!("the server's certificate is not valid: {other}"),
        },
        Error::AlertReceived(alert) => format!("the server ended the TLS handshake: {alert:?}"),
        Error::InvalidMessage(_) => "the server does not speak TLS".to_owned(),
        other => format!("TLS failed: {other}"),
    }
}

/// An error and its sources. One of I/O may have another error inside, which is none of its sources.
fn chain<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        match error.downcast_ref::<std::io::Error>().map(std::io::Error::get_ref) {
            Some(Some(inside)) => Some(inside),
            _ => error.source(),
        }
    })
}

/// The error within what only says that a request has failed.
fn innermost(error: &kube::Error) -> &(dyn std::error::Error + 'static) {
    let says_nothing = |error: &&(dyn std::error::Error + 'static)| {
        let is_wrapper = matches!(error.downcast_ref(), Some(kube::Error::Service(_)));
        error.source().is_some() && (is_wrapper || error.is::<hyper_util::client::legacy::Error>())
    };
    chain(error).find(|error| !says_nothing(error)).unwrap_or(error)
}

/// The first error of a type among an error and its sources.
fn cause<E: std::error::Error + 'static>(error: &kube::Error) -> Option<&E> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn is_connect(error: &kube::Error) -> bool {
    cause::<hyper_util::client::legacy::Error>(error).is_some_and(hyper_util::client::legacy::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use super::super::Retry;
    use super::*;

    fn refused(code: u16, reason: &str, name: &str, cause: &str) -> Error {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked {
            cluster: &cluster,
            verb: Verb::Create,
            resource: "databases.demo.towline.dev",
            name: Some("orders"),
        };
        let status: Status = serde_json::from_value(serde_json::json!({
            "code": code, "reason": reason, "message": "said",
            "details": {"name": name, "causes": [{"reason": cause}]},
        }))
        .unwrap();
        asked.refused(&status, None)
    }

    #[test]
    fn only_a_not_found_that_names_the_object_is_about_the_object() {
        assert!(matches!(refused(404, "NotFound", "orders", ""), Error::NotFound { .. }));
        assert!(matches!(refused(404, "NotFound", "other", ""), Error::NotServed { .. }));
        assert!(matches!(refused(404, "NotFound", "", ""), Error::NotServed { .. }));
        assert!(matches!(refused(404, "", "orders", ""), Error::NotServed { .. }));
        let told = refused(404, KUBE_DECODED_NOTHING, "", "").to_string();
        assert!(told.contains("install what defines it") && !told.contains(NO_STATUS), "{told}");
    }

    #[test]
    fn a_namespace_that_is_missing_is_told_apart_from_a_kind_that_is_not_served() {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked {
            cluster: &cluster,
            verb: Verb::Patch,
            resource: "databases.demo.towline.dev",
            name: Some("orders"),
        };
        let said = |details: serde_json::Value| {
            let status = serde_json::json!({"code": 404, "reason": "NotFound", "message": "said", "details": details});
            match asked.refused(&serde_json::from_value(status).unwrap(), None) {
                Error::NotServed { of_namespace, .. } => of_namespace,
                other => panic!("{other:?}"),
            }
        };
        assert!(said(serde_json::json!({"name": "shop", "kind": "namespaces"})));
        // As API servers answer on a path that they do not have.
        assert!(!said(serde_json::json!({})) && !said(serde_json::Value::Null));
        assert!(!said(serde_json::json!({"name": "", "kind": "databases", "group": "demo.towline.dev"})));
    }

    #[test]
    fn only_the_beginning_of_a_servers_message_is_repeated_and_nothing_of_another_body() {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked { cluster: &cluster, verb: Verb::List, resource: "databases.demo.towline.dev", name: None };
        let long = Status { code: 422, message: "ä".repeat(5000), ..Status::default() };
        let Error::Rejected { message, .. } = asked.refused(&long, None) else { panic!("not rejected") };
        assert_eq!(message.chars().count(), LONGEST_MESSAGE);
        let page = Status::failure("canary", KUBE_DECODED_NOTHING).with_code(502).boxed();
        let text = asked.failed(kube::Error::Api(page)).to_string();
        assert_eq!(text, format!("server error (502): {NO_STATUS}"));
    }

    #[test]
    fn a_terminating_namespace_is_not_a_missing_permission() {
        assert!(matches!(
            refused(403, "Forbidden", "orders", "NamespaceTerminating"),
            Error::NamespaceTerminating { .. }
        ));
        let forbidden = refused(403, "Forbidden", "orders", "");
        assert_eq!(forbidden.retry(), Retry::WhenAllowed);
        assert_eq!(forbidden.to_string(), "not allowed to create databases.demo.towline.dev in cluster edge: said");
    }

    fn told(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> String {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked { cluster: &cluster, verb: Verb::Get, resource: "secrets", name: Some("one") };
        asked.failed(kube::Error::Service(error.into())).message()
    }

    #[test]
    fn connection_errors_are_printed_in_plain_words() {
        use std::io::{Error as Io, ErrorKind};
        for (kind, expected) in [
            (ErrorKind::ConnectionRefused, "no answer: connection refused"),
            (ErrorKind::TimedOut, "no answer: connection timed out"),
            (ErrorKind::Other, "no answer: other error"),
        ] {
            assert_eq!(told(Io::from(kind)), expected, "{kind:?}");
            // As the layer of TLS hands it on.
            assert_eq!(told(Io::other(Io::from(kind))), expected, "{kind:?}");
        }
        let unresolved = Unresolved::of("api.west-1.example.com", Io::other("no such host"));
        assert_eq!(told(unresolved), "no answer: the name api.west-1.example.com can't be resolved");
    }

    #[test]
    fn faults_of_tls_are_printed_in_plain_words_without_names_of_the_server() {
        use rustls::pki_types::ServerName;
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        let name = ServerName::try_from("west-1").unwrap();
        let another_name =
            CertificateError::NotValidForNameContext { expected: name, presented: vec!["canary".to_owned()] };
        for (fault, expected) in [
            (CertificateError::UnknownIssuer.into(), "the server's certificate is signed by an unknown authority"),
            (CertificateError::Expired.into(), "the server's certificate has expired"),
            (CertificateError::NotValidYet.into(), "the server's certificate is not valid yet"),
            (another_name.into(), "the server's certificate is for another name"),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "the server ended the TLS handshake: CertificateRequired",
            ),
            (InvalidMessage::InvalidContentType.into(), "the server does not speak TLS"),
        ] {
            let wrapped = std::io::Error::new(std::io::ErrorKind::InvalidData, fault);
            assert_eq!(told(std::io::Error::other(wrapped)), format!("no answer: {expected}"));
        }
    }

    #[test]
    fn an_error_keeps_what_it_comes_from() {
        let cluster: ClusterName = "edge".parse().unwrap();
        let asked = Asked { cluster: &cluster, verb: Verb::Get, resource: "secrets", name: Some("one") };
        let decoder = serde_json::from_str::<u64>("?").unwrap_err();
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for error in [kube::Error::SerdeError(decoder), kube::Error::Service(Box::new(broken))] {
            let failed = asked.failed(error);
            let mut depth = 0;
            let mut next = std::error::Error::source(&failed);
            while let Some(inner) = next {
                depth += 1;
                next = inner.source();
            }
            assert!(depth >= 2, "{failed:?}: {depth}");
            assert_eq!(full_text(&failed), failed.to_string());
        }
    }

    #[test]
    fn a_fault_of_an_invalid_object_keeps_its_reason_and_not_the_value() {
        for (fault, kept) in [
            (r#"Invalid value: "canary: \"canary": must be short: yes"#, "Invalid value: must be short: yes"),
            (
                r#"Unsupported value: "canary": supported values: "Always""#,
                r#"Unsupported value: supported values: "Always""#,
            ),
            (r#"Duplicate value: {"key":"canary}: canary"}"#, "Duplicate value"),
            (r#"Invalid value: {"a":"canary: }: canary"}: field is immutable"#, "Invalid value: field is immutable"),
            (
                r#"Invalid value: core.Spec{A:"canary", B:map[string]string{"a":"canary"}}: field is immutable"#,
                "Invalid value: field is immutable",
            ),
            ("Invalid value: 99999: must be between 1 and 65535", "Invalid value: 99999: must be between 1 and 65535"),
            (
                "Forbidden: field is immutable when `immutable` is set",
                "Forbidden: field is immutable when `immutable` is set",
            ),
            ("Required value", "Required value"),
            ("Invalid value: must be short", "Invalid value: must be short"),
        ] {
            assert_eq!(without_value(fault), kept);
        }
    }

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_end() {
        let long = format!("beginning{}end", "ä".repeat(LONGEST_UNTRUSTED));
        let kept = harmless(&long);
        assert!(kept.starts_with("beginningä") && kept.ends_with("äend") && kept.contains("ä … ä"), "{kept}");
        assert!((LONGEST_UNTRUSTED - 4..=LONGEST_UNTRUSTED).contains(&kept.len()), "{}", kept.len());
        assert_eq!(harmless(" a\nb "), "a b");
        let got = "x: .data.a: expected string, got &{canary\ncanary}\n.data.b: expected string, got &{canary}";
        assert_eq!(without_got(got), "x: .data.a: expected string");
        assert_eq!(without_got(".spec: field not declared in schema"), ".spec: field not declared in schema");
    }

    #[test]
    fn the_output_of_a_credential_plugin_is_not_printed() {
        let printed = "canary";
        let out =
            std::process::Command::new("sh").args(["-c", "echo canary; echo canary >&2; exit 3"]).output().unwrap();
        assert!(
            String::from_utf8_lossy(&out.stdout).contains(printed)
                && String::from_utf8_lossy(&out.stderr).contains(printed)
        );
        let failed = AuthError::AuthExecRun { cmd: "TOKEN=canary sh".into(), out: Box::new(out) };
        let wrong = serde_saphyr::from_str::<u64>(printed).unwrap_err();
        for error in [failed, AuthError::AuthExecParse(Box::new(wrong))] {
            assert!(error.to_string().contains(printed), "{error}");
            let asked_for = kube::Error::Auth(error);
            let text = full_text(&asked_for);
            assert!(text.contains("command for credentials") && !text.contains(printed), "{text}");
            let on_the_way = kube::Error::Service(Box::new(asked_for));
            let text = full_text(&on_the_way);
            assert!(text.contains("command for credentials") && !text.contains(printed), "{text}");
        }
    }

    #[test]
    fn conflicts_are_read_again_and_server_errors_leave_the_outcome_unknown() {
        assert_eq!(refused(409, "Conflict", "orders", "").retry(), Retry::Reread);
        assert!(matches!(refused(409, "AlreadyExists", "orders", ""), Error::Conflict { exists: true, .. }));
        assert!(refused(500, "InternalError", "", "").outcome_is_unknown());
        assert!(!refused(422, "Invalid", "", "").outcome_is_unknown());
    }
}
