//! An address of the database that leads to another server when it is told to, as after a failover.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Error;

/// Forwards connections. Gone, with them, when dropped.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    accepting: JoinHandle<()>,
}

impl Gateway {
    pub async fn to(server: SocketAddr) -> Result<Self, Error> {
        let network = |source| Error::Network { action: "listen for a gateway", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(network)?;
        let address = listener.local_addr().map_err(network)?;
        let target = watch::Sender::new(server);
        let targets = target.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(stream, targets.clone()));
            }
        });
        Ok(Self { address, target, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and leads further ones to this server.
    pub fn lead_to(&self, server: SocketAddr) {
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
