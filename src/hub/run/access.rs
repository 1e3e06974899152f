//! How callers are recognized: by the grants in force when a request comes, and as long as a watch lasts.

use std::sync::Arc;

use http::HeaderValue;
use http::request::Parts;
use tokio::sync::watch;

use crate::documents::Problem;
use crate::hub::plan::access::Caller;
use crate::hub::plan::tokens::{ActionScope, Grants, Role};

#[derive(Clone)]
pub enum Access {
    /// Everybody on this machine may do everything.
    Local,
    Tokens(watch::Receiver<Arc<Grants>>),
}

impl Access {
    pub fn has_tokens(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }

    /// The caller of a request. The problem is 401 without a known token, and 403 where a local caller acts on behalf of another
    /// party.
    pub fn caller(&self, request: &Parts) -> Result<Caller, Problem> {
        match self {
            Self::Local => Caller::on_this_machine(request),
            Self::Tokens(grants) => Caller::with_token(request, Arc::clone(&grants.borrow())),
        }
    }

    /// Whose token this header has, if it is known. It is asked for requests that were refused.
    pub fn name_of(&self, authorization: Option<&HeaderValue>) -> Option<String> {
        let Self::Tokens(grants) = self else { return None };
        Caller::named(authorization?, Arc::clone(&grants.borrow()))
    }

    /// Completes when the caller may no longer do this. Never, if everybody may.
    pub async fn lost(&self, caller: &Caller, role: Role, place: ActionScope<'_>) {
        let Self::Tokens(grants) = self else { return std::future::pending().await };
        let mut grants = grants.clone();
        let ended = grants.wait_for(|grants| !caller.with(grants).may(role, place)).await.is_err();
        if ended {
            // The server ends with what reads the file.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::hub::run::api::tests::tokens;

    #[tokio::test(start_paused = true)]
    async fn a_caller_learns_when_a_grant_is_taken_away() {
        let Access::Tokens(granted) = tokens() else { unreachable!("it has tokens") };
        let (file, receiver) = watch::channel(Arc::clone(&granted.borrow()));
        let access = Access::Tokens(receiver);
        let request = Request::get("/v1/clusters").header("authorization", "Bearer read-foo");
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let caller = access.caller(&head).expect("a caller");
        let lost =
            |place| tokio::time::timeout(std::time::Duration::from_secs(1), access.lost(&caller, Role::Read, place));
        assert!(lost(ActionScope::Namespace("foo")).await.is_err());
        file.send_replace(Arc::default());
        assert!(lost(ActionScope::Namespace("foo")).await.is_ok());
    }
}
