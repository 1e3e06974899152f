//! A way to a server that swallows packets: not refused, not reset, just never answered.
//!
//! A forwarder listens on a loopback port of its own, and a rule of nftables drops what arrives for that port or from
//! it. The table belongs to an `nft` process that is held for as long as the rule is (`flags owner`), so the kernel
//! removes it when the test ends, however it ends. Nothing but that one port is touched.
//!
//! The forwarder itself can swallow the server's answers alone, and hang up: what was asked is done, and whoever asked
//! never hears of it. Or it holds them, all or from the middle of one on, and hands them over later.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ChildStdin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::process::{Process, Spec};
use crate::room::Room;
use crate::{Error, eventually};

/// `nft` needs milliseconds.
const LONGEST_CHANGE: Duration = Duration::from_secs(20);

/// A way to a server, to be cut and restored. Gone, with the connections over it, when dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    forwarder: JoinHandle<()>,
    state: watch::Sender<State>,
    /// Holds the table while the link is cut. At the end of its input `nft` would end, and the table with it.
    cut: Mutex<Option<(Process, ChildStdin)>>,
    room: Room,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// What the server says is swallowed.
    mute: bool,
    /// So many bytes of what the server says may still pass; any number where there is none.
    room: Option<usize>,
    /// How often it hung up: a connection from before is over.
    hung_up: u64,
}

impl Link {
    pub async fn to(server: SocketAddr) -> Result<Self, Error> {
        let room = Room::new("link")?;
        let network = |action| move |source| Error::Network { action, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(network("listen for a link"))?;
        let address = listener.local_addr().map_err(network("listen for a link"))?;
        let state = watch::Sender::default();
        let forwarder = tokio::spawn(forward(listener, server, state.clone()));
        Ok(Self { address, forwarder, state, cut: Mutex::new(None), room })
    }

    /// Where clients connect instead of to the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on no packet arrives in either direction, of connections that exist and of new ones.
    pub async fn cut(&self) -> Result<(), Error> {
        let mut cut = self.cut.lock().await;
        if cut.is_some() {
            return Ok(());
        }
        let log = self.room.join("nft.log");
        let process = Process::start(Spec {
            name: "nft".to_owned(),
            program: "nft".into(),
            args: vec!["--interactive".into()],
            env: Vec::new(),
            log: log.clone(),
            piped_stdin: true,
        })
        .await?;
        let mut input = process.take_stdin().ok_or_else(|| Error::NotRunning { process: "nft".to_owned() })?;
        let written = writeln!(input, "{}", self.table()).and_then(|()| input.flush());
        written.map_err(|source| missing_nft(&source.to_string()))?;
        eventually(format!("nftables to drop packets of {}", self.address), LONGEST_CHANGE, async || {
            if process.check().is_err() {
                return Ok(Err(missing_nft(&process.log_tail())));
            }
            let listed = Command::new("nft").args(["list", "table", "inet", &self.table_name()]).output().await;
            let listed = listed.map_err(|error| error.to_string())?;
            if listed.status.success() { Ok(Ok(())) } else { Err(process.log_tail()) }
        })
        .await??;
        *cut = Some((process, input));
        Ok(())
    }

    /// Packets arrive again. Connections that exist go on where they were, if their ends have not given up.
    pub async fn restore(&self) -> Result<(), Error> {
        match self.cut.lock().await.take() {
            Some((process, _)) => process.kill().await,
            None => Ok(()),
        }
    }

    /// From now on what clients say arrives, and what the server says does not. Only [`Link::hang_up`] ends that: a
    /// connection with a gap in it is of no use.
    pub fn mute(&self) {
        self.state.send_modify(|state| state.mute = true);
    }

    /// From now on what clients say arrives, and of what the server says so many bytes, of all connections together. The
    /// rest waits, so that a server with much to say can't go on, until [`Link::release`].
    pub fn hold_after(&self, bytes: usize) {
        self.state.send_modify(|state| state.room = Some(bytes));
    }

    /// Waits until so many bytes have come, and the rest waits.
    pub async fn holds(&self) {
        // The sender is this link's own.
        let _ = self.state.subscribe().wait_for(|state| state.room == Some(0)).await;
    }

    /// What was held arrives, and what follows.
    pub fn release(&self) {
        self.state.send_modify(|state| state.room = None);
    }

    /// Ends all connections, and lets new ones be heard.
    pub fn hang_up(&self) {
        self.state.send_modify(|state| *state = State { hung_up: state.hung_up + 1, ..State::default() });
    }

    fn table_name(&self) -> String {
        format!("towline_link_{}_{}", std::process::id(), self.address.port())
    }

    /// One line, so that nftables takes it in one step.
    fn table(&self) -> String {
        let (name, port) = (self.table_name(), self.address.port());
        format!(
            "table inet {name} {{ flags owner; chain input {{ type filter hook input priority 0; policy accept; \
             iifname \"lo\" tcp dport {port} drop; iifname \"lo\" tcp sport {port} drop; }}; }}"
        )
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}

fn missing_nft(detail: &str) -> Error {
    Error::Missing {
        program: "nft",
        needed_for: "packets of a test's own loopback port are dropped",
        remedy: format!("install nftables and run as root or with CAP_NET_ADMIN; it says: {}", detail.trim()),
    }
}

async fn forward(listener: TcpListener, server: SocketAddr, state: watch::Sender<State>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let answers = Answers { begun: state.borrow().hung_up, state: state.clone() };
        let mut state = state.subscribe();
        connections.spawn(async move {
            // What goes wrong here, both ends see for themselves.
            let Ok(mut server) = TcpStream::connect(server).await else { return };
            drop((client.set_nodelay(true), server.set_nodelay(true)));
            let begun = answers.begun;
            let ((client_reads, client_writes), (server_reads, server_writes)) = (client.split(), server.split());
            // A connection that one end has reset ends for the other, too.
            let both = async {
                tokio::try_join!(copy(client_reads, server_writes), answers.copy(server_reads, client_writes))
            };
            tokio::select! {
                _ = both => {}
                _ = state.wait_for(|state| state.hung_up != begun) => {}
            }
        });
    }
}

/// Copies until the end, and tells the other end of it.
async fn copy(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> std::io::Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

/// What the server says on one connection.
struct Answers {
    state: watch::Sender<State>,
    /// How often the forwarder had hung up when the connection was made.
    begun: u64,
}

impl Answers {
    /// Copies what may pass, until the end; what comes while it is swallowed is lost, the end too.
    async fn copy(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> std::io::Result<()> {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut bytes).await?;
            if count == 0 {
                self.until(|state| state.room != Some(0)).await;
                return if self.are_swallowed() { Ok(()) } else { to.shutdown().await };
            }
            let mut left = bytes.get(..count).unwrap_or_default();
            while !left.is_empty() && !self.are_swallowed() {
                let (now, later) = left.split_at(self.take(left.len()));
                to.write_all(now).await?;
                left = later;
                self.until(|state| later.is_empty() || state.room != Some(0)).await;
            }
        }
    }

    fn are_swallowed(&self) -> bool {
        let state = self.state.borrow();
        state.mute || state.hung_up != self.begun
    }

    /// Takes room for so many bytes, or for as many as may pass.
    fn take(&self, wanted: usize) -> usize {
        let mut taken = wanted;
        self.state.send_if_modified(|state| {
            let Some(room) = &mut state.room else { return false };
            taken = wanted.min(*room);
            *room -= taken;
            // Only the packet that takes the last room wakes those who wait.
            taken > 0 && *room == 0
        });
        taken
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        // The sender is `self`'s: it does not end before this does.
        drop(self.state.subscribe().wait_for(|state| holds(state)).await);
    }
}
