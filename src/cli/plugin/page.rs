//! `kubectl towline ui`: the page of a daemon at an address of this machine.

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::client;
use super::error::Error;
use super::forward::{Forwarded, Pods};
use super::pods::Replica;
use super::replicas::{NotRun, runs, silent};
use super::said_by_all;
use crate::actor::Backoff;
use crate::cluster::full_text;
use crate::job::command::{Exit, complain};
use crate::job::output::one_line;

/// Between attempts to reach a replica.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// The most connections at a time: a browser opens six to one address.
const MOST_CONNECTIONS: usize = 32;

/// Serves the page of the replica that runs the most sections until a signal ends the process. Each connection is forwarded by itself; if
/// the replica goes, the next one finds another.
pub(super) async fn serve(pods: &Pods, port: u16, out: &mut impl Write) -> Result<Exit, client::Error> {
    let mut shown = Some(busiest(pods).await?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(Error::Listen)?;
    let address = listener.local_addr().map_err(Error::Listen)?;
    writeln!(out, "http://{address}/ui/").and_then(|()| out.flush()).map_err(client::Error::Write)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                // One that was closed before it was accepted.
                let Ok((connection, _)) = accepted else { continue };
                let forwarded = reach(pods, &mut shown).await;
                connections.spawn(carry(connection, forwarded));
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

/// A stream to the replica that is shown, or to another one if that is gone.
async fn reach(pods: &Pods, shown: &mut Option<Replica>) -> Forwarded {
    let (mut attempt, mut told) = (0, String::new());
    loop {
        let opened = async {
            let replica = match shown.take() {
                Some(replica) => replica,
                None => busiest(pods).await?,
            };
            let forwarded = pods.open(&replica).await?;
            *shown = Some(replica);
            Ok::<_, Error>(forwarded)
        };
        match opened.await {
            Ok(forwarded) => return forwarded,
            Err(error) => {
                let fault = full_text(&error);
                if fault != told {
                    complain(&fault);
                }
                told = fault;
            }
        }
        sleep(RETRY.next_delay(attempt)).await;
        attempt = attempt.saturating_add(1);
    }
}

/// The replica that runs the most sections, the first one of equal ones.
async fn busiest(pods: &Pods) -> Result<Replica, Error> {
    let said = said_by_all(pods, "/status?latest=true").await?;
    let of_replicas = said.iter().filter_map(|said| Some((runs(said.status.as_ref().ok()?), &said.replica)));
    let busiest = of_replicas.reduce(|best, next| if next.0 > best.0 { next } else { best });
    busiest.map(|(_, replica)| replica.clone()).ok_or_else(|| NotRun::Silent { silent: silent(&said) }.into())
}

/// Carries a connection to its end. Returns why the pod does not take it, if it doesn't.
async fn carry(mut connection: TcpStream, mut forwarded: Forwarded) -> Option<String> {
    tokio::select! {
        biased;
        Some(fault) = &mut forwarded.fault => Some(one_line(fault.trim())),
        _ = copy_bidirectional(&mut connection, &mut forwarded.stream) => None,
    }
}
