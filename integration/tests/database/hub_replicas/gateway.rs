//! An address of the database that leads to another server when it is told to, as after a failover.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards connections. Gone, with them, when dropped.
pub(crate) struct Gateway {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    accepting: JoinHandle<()>,
}

impl Gateway {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let target = watch::Sender::new(server);
        let targets = target.subscribe();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(forward(stream, targets.clone()));
            }
        });
        Self { address, target, accepting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and leads further ones to this server.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        self.target.send_replace(server);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(mut client: TcpStream, mut target: watch::Receiver<SocketAddr>) {
    let server = *target.borrow_and_update();
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        // Also when the gateway is gone.
        _ = target.changed() => {}
    }
}
