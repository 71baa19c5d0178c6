//! Services and names on a machine that is a cluster of its own.
//!
//! - `catalog` holds what is known of services, their endpoints and pods.
//! - `routes` says where each of their ports leads, and `router` keeps that true.
//! - `names` says what a name means, `answer` says it in messages of DNS, and `name_server` to pods; `upstream` asks the
//!   machine's own resolvers for all other names.
//!
//! What must always hold: nothing here asks an API or changes the machine; what pods send is bounded and never trusted. Whoever follows the objects puts them into the
//! catalog, and whoever has the pods' network makes the routes true.
//!
//! At a node of a cluster that others run none of this is used: a proxy and a resolver of the cluster are there.

mod answer;
mod catalog;
mod name_server;
mod names;
mod router;
mod routes;
mod upstream;

pub use catalog::ServiceCatalog;
pub use name_server::{NameServer, NameSource};
pub use router::keep_routes;
pub use upstream::Upstream;
