//! What tests outside this crate use of it: those that run the store, the dispatcher and passes on a real database, and those that read
//! what jobs declare.

pub mod actor {
    pub use crate::actor::{BoxError, ChildSpec, Inbox, Scope, Supervisor, mailbox, run};
}
pub mod amqp {
    pub use crate::amqp::{AmqpSource, AmqpUrl};
}
pub mod cli {
    pub use crate::cli::{command_line, plugin_command_line};
}
pub mod cluster {
    pub use crate::cluster::{
        AccessRequest, Clock, Cluster, DynamicCluster, DynamicClusters, Error, Fence, Kind, KindError, KindId, Kinds,
        Metadata, ObjectKey, PARTIAL_METADATA, Pages, Payload, Request, Stated, Verb,
    };
}
pub mod config {
    pub use crate::config::{ClusterAccess, ClusterName, Error, SectionName};
    pub mod fields {
        pub use crate::config::fields::Fields;
    }
    pub mod setting {
        pub use crate::config::setting::PositiveDuration;
    }
    pub mod source {
        pub use crate::config::source::Node;
    }
}
pub mod db {
    pub use crate::db::{
        Database, DatabaseSource, Error, Json, Listener, Row, ServerError, Session, Subscriber, Text, Type, column,
    };
    pub mod migrations {
        pub use crate::db::migrations::{Error, Migration, Migrations, Status};
    }
}
pub mod documents {
    pub use crate::documents::{
        Author, BlockingPool, Broker, BusObserver, Change, ClaimLimits, ClaimMix, ClaimOrder, ClaimSlot, ClaimSlots,
        Claims, Compacted, Compaction, ConnectionState, Continue, Counts, Document, Ending, Entry, Event, Expected,
        Fields, Filter, Grant, Holder, Item, Keeps, Key, Keyring, Kind, LargeSlots, Leadership, ListError, ListQuery,
        Migrated, Object, OpenError, Outcome, Page, Problem, ProblemKind, Purpose, Quota, Role, Row, RowEnd, SCHEMA,
        SlotOwner, Store, Tail, Template, TextBudget, Usage, Watch, WatchQuery, Work, WorkClaim, WorkConsumer, WorkEnd,
        WorkQueue, WriteError, Writer, WriterHandle, compact, list, list_json, migrate, open, renumber,
    };
}
pub mod guard {
    pub use crate::guard::{GuardedChange, record_held};
}
pub mod http {
    pub use crate::http::DeniedNetworks;
}
pub mod hub {
    pub use crate::hub::{HubMetrics, alone, section};
}
pub mod job {
    pub use crate::job::{Config, Job, JobList, Reading, Sections, Wiring};
    pub mod check {
        pub use crate::job::check::{Surroundings, say};
    }
    pub mod command {
        pub use crate::job::command::Exit;
    }
    pub mod permission {
        pub use crate::job::permission::{Kinds, Permission, PermissionPlace};
    }
}
pub mod jobs {
    pub use crate::jobs::JOBS;
}
pub mod lease {
    pub use crate::lease::{LeaseJob, LeaseMetrics, sections};
}
pub mod process {
    pub use crate::process::execute;
}
pub mod rbac {
    pub use crate::rbac::{Scope, requests};
}
pub mod resource_sync {
    pub use crate::resource_sync::{Direction, SyncJob, SyncMetrics, sections};
}
pub mod status_sync {
    pub use crate::status_sync::{StatusSyncJob, StatusSyncMetrics, WriteOutcome, alone, section};
}
pub mod syncset {
    pub use crate::syncset::run::applied::{Applied, SelectorApplied};
    pub use crate::syncset::run::counts::{Counted, DispatcherState, RolloutGroup};
    pub use crate::syncset::{SyncsetMetrics, section};
    pub mod config {
        pub use crate::syncset::config::SyncsetsConfig;
    }
    pub mod dispatch {
        pub use crate::syncset::run::dispatch::{
            Aside, AsideCheck, Batch, Dispatch, DispatchError, DispatchObserver, Dispatcher, Rollouts,
            SuspendedSyncset, approve, being_counted, suspended,
        };
    }
    pub mod kubeconfig {
        pub use crate::cluster::kubeconfig::{Allowed, of_user};
    }
    pub mod payloads {
        pub use crate::syncset::run::payloads::Payloads;
    }
    pub mod plan {
        pub mod action {
            pub use crate::syncset::plan::action::{Action, PassPlan};
        }
        pub mod digest {
            pub use crate::syncset::plan::digest::inputs;
        }
        pub mod guard {
            pub use crate::syncset::plan::guard::Cause;
        }
        pub mod health {
            pub use crate::syncset::plan::health::{HealthState, ObjectStatus, assess};
        }
        pub mod name {
            pub use crate::syncset::plan::name::{Digest, ObjectRef, SyncSetKind, SyncSetName};
        }
        pub mod object {
            pub use crate::syncset::plan::object::normalize;
        }
        pub mod parse {
            pub use crate::syncset::plan::parse::{Identity, header, payload};
        }
        pub mod pass {
            pub use crate::syncset::plan::pass::{
                Address, End, Ending, Failed, Input, List, Outcome, Page, Progress, Refused, Release, Resolution, Seen,
                Target, Write, Writes, Written, pass,
            };
        }
        pub mod reason {
            pub use crate::syncset::plan::reason::Reason;
        }
        pub mod render {
            pub use crate::syncset::plan::render::{UnreadableSecret, render};
        }
        pub mod rows {
            pub use crate::syncset::plan::rows::{AppliedRow, ClusterRow, Failure, GuardRow, PatchedRow, ResultRow};
        }
        pub mod snapshot {
            pub use crate::syncset::plan::snapshot::{Plan, Snapshot, StoredCluster};
        }
        pub mod spec {
            pub use crate::syncset::plan::spec::{Behavior, Desired, Header, Mode, Position, Rendered, Rendering};
        }
        pub mod wanted {
            pub use crate::syncset::plan::wanted::{Deletions, Live, Scope, Wanted};
        }
    }
    pub mod rollouts {
        pub use crate::syncset::run::rollouts::{Order, OrderError, carry_out, sent_again};
    }
    pub mod store {
        pub use crate::syncset::run::store::{ClusterUpdate, Lacking, MOST_ROWS, PassStore, StoreError, TooLarge};
    }
    pub mod work {
        pub use crate::syncset::run::work::{
            Client, Executor, First, NoClient, NoCredentials, PrepareError, Prepared, Preparer, Stop, WorkObserver,
        };
    }
}
pub mod status {
    pub use crate::status::{Facts, NotReady, ObjectState, Objects, Section};
}
pub mod telemetry {
    pub use crate::telemetry::{
        Metric, MetricKind, ReconcileResult, RestClientMetrics, VERSION, WorkqueueMetrics, cluster_available,
        cluster_new_credentials_fail, db_query, describe, leader_election_master_status, oldest_pending, recorder,
        render_families, render_process, section_objects, section_well,
    };
}
pub mod yaml {
    pub use crate::yaml::{Error, documents};
}
