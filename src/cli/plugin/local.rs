//! What is served at an address of this machine: the page of a daemon to browsers (`kubectl towline ui`), and the API of a hub to a command.

use std::convert::Infallible;
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::client;
use super::super::release::{Error, NotRun};
use super::forward::{Forwarded, Pods};
use super::pods::Replica;
use super::replicas::{Said, runner, runs, silent};
use super::{said_by_all, said_of};
use crate::actor::Backoff;
use crate::cluster::full_text;
use crate::config::text::one_line;
use crate::job::client::forwarded;
use crate::job::command::{Exit, complain};

/// Between attempts to reach a replica.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// The most connections at a time: a browser opens six to one address.
const MOST_CONNECTIONS: usize = 32;
/// The section of a hub.
const HUB: &str = "hub";

/// What is served.
#[derive(Clone, Copy)]
enum Served {
    Page,
    Api,
}

/// Serves the page of the replica that runs the most sections until a signal ends the process.
pub(super) async fn page(pods: &Pods, port: u16, out: &mut impl Write) -> Result<Exit, client::Error> {
    let first = Served::Page.chosen(pods).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(Error::Listen)?;
    let address = listener.local_addr().map_err(Error::Listen)?;
    writeln!(out, "http://{address}/ui/").and_then(|()| out.flush()).map_err(client::Error::Write)?;
    match serve(Served::Page, &listener, pods, first).await {}
}

/// Does the work of a command of the hub, whose API is forwarded to it.
pub(super) async fn at_hub(pods: &Pods, work: impl Future<Output = Exit>) -> Result<Exit, Error> {
    let first = Served::Api.chosen(pods).await?;
    // Rather than with the first request, which could only say that it has no answer.
    drop(pods.open(&first, Served::Api.port(&first)).await?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(Error::Listen)?;
    let address = listener.local_addr().map_err(Error::Listen)?;
    tokio::select! {
        exit = forwarded(address, work) => Ok(exit),
        never = serve(Served::Api, &listener, pods, first) => match never {},
    }
}

/// Forwards each connection by itself; if the replica goes, the next one finds another.
async fn serve(served: Served, listener: &TcpListener, pods: &Pods, first: Replica) -> Infallible {
    let (mut shown, mut told) = (Some(first), String::new());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                // One that was closed before it was accepted.
                let Ok((connection, _)) = accepted else { continue };
                if let Some(stream) = served.reach(pods, &mut shown, &mut told).await {
                    connections.spawn(carry(connection, stream));
                }
            }
            Some(ended) = connections.join_next() => {
                if let Ok(Some(fault)) = ended {
                    complain(&fault);
                    shown = None;
                }
            }
        }
    }
}

impl Served {
    /// The replica whose page or API it is.
    async fn chosen(self, pods: &Pods) -> Result<Replica, Error> {
        match self {
            Self::Page => busiest(&said_by_all(pods, "/status?latest=true").await?),
            Self::Api => Ok(runner(HUB, &said_of(HUB, pods).await?)?.clone()),
        }
    }

    fn port(self, replica: &Replica) -> &Result<u16, String> {
        match self {
            Self::Page => &replica.admin,
            Self::Api => &replica.api,
        }
    }

    /// A stream to the replica that is shown, or to another one if that is gone. A browser waits until there is one. For a command one choice
    /// has to do: it ends, or asks again, when its connection does. A fault is told once, until it is another one.
    async fn reach(self, pods: &Pods, shown: &mut Option<Replica>, told: &mut String) -> Option<Forwarded> {
        let mut attempt = 0;
        loop {
            let is_chosen_now = shown.is_none();
            let opened = async {
                let replica = match shown.take() {
                    Some(replica) => replica,
                    None => self.chosen(pods).await?,
                };
                let stream = pods.open(&replica, self.port(&replica)).await?;
                *shown = Some(replica);
                Ok::<_, Error>(stream)
            };
            match opened.await {
                Ok(stream) => {
                    told.clear();
                    return Some(stream);
                }
                Err(error) => {
                    let fault = full_text(&error);
                    if fault != *told {
                        complain(&fault);
                    }
                    *told = fault;
                }
            }
            if is_chosen_now && matches!(self, Self::Api) {
                return None;
            }
            sleep(RETRY.next_delay(attempt)).await;
            attempt = attempt.saturating_add(1);
        }
    }
}

/// The replica that runs the most sections, the first one of equal ones.
fn busiest(said: &[Said]) -> Result<Replica, Error> {
    let of_replicas = said.iter().filter_map(|said| Some((runs(said.status.as_ref().ok()?), &said.replica)));
    let busiest = of_replicas.reduce(|best, next| if next.0 > best.0 { next } else { best });
    busiest.map(|(_, replica)| replica.clone()).ok_or_else(|| NotRun::Silent { silent: silent(said) }.into())
}

/// Carries a connection to its end. Returns why the pod does not take it, if it doesn't.
async fn carry(mut connection: TcpStream, mut forwarded: Forwarded) -> Option<String> {
    tokio::select! {
        biased;
        Some(fault) = &mut forwarded.fault => Some(one_line(fault.trim())),
        _ = copy_bidirectional(&mut connection, &mut forwarded.stream) => None,
    }
}
