//! Real components for tests, demo and bench: control planes, the daemon as its own process, a network that fails.
//!
//! A fixture is a value: it is ready when it is there, and gone, with its processes and files, when it is dropped or
//! when the process that holds it ends, be it by SIGKILL. A component that is missing is an error that names what to
//! install; nothing is skipped. Fixtures wait on conditions, and say what they have waited for when they give up.
//!
//! | module | what |
//! |---|---|
//! | [`control_plane`] | etcd, API server, controller manager; killed, restarted, emptied, compacted |
//! | [`postgres`] | the hub's database, with its schemas and accounts |
//! | [`rabbitmq`] | a message broker; killed, wiped, stopped, alarmed |
//! | [`canary`] | values that must be nowhere, in every spelling |
//! | [`leaf_hubs`] | hub objects, and what is reported of them to the database |
//! | [`audit`] | requests, counted where they arrive |
//! | [`hub`] | replicas of the hub, and clients of its REST API |
//! | [`towline`] | the daemon, killed and asked |
//! | [`commands`] | commands with each `-o`, and `kubectl towline` |
//! | [`pod`] | the pod of a Deployment, with its volumes and its account, as a process of the test |
//! | [`kubelet`] | a node that is played: forwards ports of pods to processes of a test |
//! | [`helm`], [`sink`] | releases, and an HTTP API that records what is posted to it |
//! | [`reference`] | the Go controller that the bench compares with |
//! | [`blackhole`] | a way to a server that swallows packets |
//! | [`gateway`] | a way to a server that leads to another one, as after a failover |
//! | [`crds`], [`rbac`] | the demo kinds, and the rights of `deploy/` |
//! | [`wait`], [`compare`] | until something holds, and whether two clusters are in step |
//! | [`page`] | what `tests/page` plays, beside what a daemon says |
//! | [`load`], [`arrivals`] | many writes, and when they arrive |
//! | [`soak`] | seeds and rounds of tests that draw lots |

pub mod arrivals;
pub mod audit;
pub mod blackhole;
pub mod canary;
mod certificates;
pub mod commands;
pub mod compare;
pub mod control_plane;
pub mod crds;
mod error;
mod etcd;
pub mod gateway;
pub mod helm;
mod http_client;
pub mod hub;
pub mod kubelet;
pub mod leaf_hubs;
pub mod load;
pub mod page;
pub mod pod;
pub mod port;
pub mod postgres;
mod process;
pub mod programs;
pub mod rabbitmq;
pub mod rbac;
pub mod reference;
mod room;
pub mod sink;
pub mod soak;
pub mod towline;
mod usage;
pub mod users;
pub mod wait;

pub use self::arrivals::Arrivals;
pub use self::audit::{Audit, Filter, Mark};
pub use self::blackhole::Link;
pub use self::certificates::ClientCertificate;
pub use self::control_plane::{ControlPlane, Options, Storage, WORKLOAD_CONTROLLERS};
pub use self::error::Error;
pub use self::gateway::Gateway;
pub use self::helm::{Chart, Helm};
pub use self::http_client::Answer;
pub use self::kubelet::Kubelet;
pub use self::postgres::Postgres;
pub use self::rabbitmq::RabbitMq;
pub use self::reference::Reference;
pub use self::sink::{Reply, Sink, Told};
pub use self::towline::{Towline, settings_noted};
pub use self::usage::Usage;
pub use self::wait::eventually;
