//! Whether the node has room for a pod.
//!
//! The pods of an API are counted as a kubelet counts them. Those of files and of `run` are their owner's decision: they
//! are never refused for what others use, but what they request is gone for the others.

use pulselet_engine::line::Phase;
use pulselet_model::{ResourceTotals, Shortage};
use pulselet_plan::{PodBlueprint, PodRefusal, out_of};

use super::Agent;
use crate::pod::identity::Origin;

impl Agent {
    /// Why there is no room; `None` if there is.
    pub(super) fn lack_of_room(&self, blueprint: &PodBlueprint, origin: &Origin) -> Option<PodRefusal> {
        if !origin.is_api() {
            return None;
        }
        let (pods, used) = self.taken();
        let most = u64::from(self.config.duties.max_pods);
        if pods >= most {
            return Some(out_of(&Shortage {
                resource: "pods".to_owned(),
                requested: 1,
                used: pods,
                capacity: most,
            }));
        }
        let shortage = blueprint.requests.shortage(&used, &self.jobs.facts.allocatable)?;
        Some(out_of(&shortage))
    }

    /// How many pods have not ended, and what they request together.
    fn taken(&self) -> (u64, ResourceTotals) {
        let (mut pods, mut used) = (0, ResourceTotals::default());
        for (key, entry) in &self.entries {
            let phase = self.pods.get(*key).map(pulselet_engine::PodMachine::phase);
            match phase {
                Some(Phase::Pending | Phase::Running) => {
                    pods += 1;
                    used.add(&entry.blueprint.requests);
                }
                Some(Phase::Succeeded | Phase::Failed) | None => {}
            }
        }
        (pods, used)
    }
}
