//! resource_sync
