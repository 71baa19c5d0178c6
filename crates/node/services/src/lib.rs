//! Services and names on a machine that is a cluster of its own.
//!
//! - `catalog` holds what is known of services, their endpoints and pods, and says where each port of a service leads.
//! - `router` keeps those routes true.
//!
//! What must always hold: nothing here asks an API or changes the machine; whoever follows the objects puts them into the
//! catalog, and whoever has the pods' network makes the routes true.
//!
//! At a node of a cluster that others run none of this is used: a proxy and a resolver of the cluster are there.

mod catalog;
mod router;

pub use catalog::ServiceCatalog;
pub use router::keep_routes;
