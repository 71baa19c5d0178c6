//! CRI's service for sandboxes and containers.

use pulselet_cri_wire::v1;
use pulselet_cri_wire::v1::runtime_service_server::RuntimeService;
use pulselet_runtime::RuntimeCondition;
use serde_json::json;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::metrics;
use crate::refusal::refused;
use crate::service::Service;

/// The version of CRI's own runtime API, which kubelets compare.
const API_VERSION: &str = "0.1.0";
const CRI_VERSION: &str = "v1";

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    async fn status_of_runtime(&self, verbose: bool) -> Result<v1::StatusResponse, Status> {
        let health = self.runtime().health().await.map_err(refused)?;
        let security = self.security_features();
        let handler = v1::RuntimeHandler {
            name: String::new(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: security.recursive_read_only,
                user_namespaces: security.user_namespaces,
            }),
        };
        let info = json!({"name": self.0.version.name, "version": self.0.version.version});
        Ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", health.runtime),
                    condition("NetworkReady", health.network),
                ],
            }),
            info: if verbose {
                [("config".to_owned(), info.to_string())].into()
            } else {
                std::collections::BTreeMap::new()
            },
            runtime_handlers: vec![handler],
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: security.strict_groups,
            }),
        })
    }
}

fn condition(kind: &str, condition: RuntimeCondition) -> v1::RuntimeCondition {
    let (status, reason, message) = match condition {
        RuntimeCondition::Ready => (true, String::new(), String::new()),
        RuntimeCondition::NotReady { reason, message } => (false, reason, message),
    };
    v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason,
        message,
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: API_VERSION.to_owned(),
            runtime_name: self.0.version.name.clone(),
            runtime_version: self.0.version.version.clone(),
            runtime_api_version: CRI_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let answer = self.status_of_runtime(request.get_ref().verbose).await?;
        Ok(Response::new(answer))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        // Cgroups are made by their paths; systemd has no part in it.
        let cgroup_driver = v1::CgroupDriver::Cgroupfs.into();
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver });
        Ok(Response::new(v1::RuntimeConfigResponse { linux }))
    }

    /// The range of a node's pods is its network's business, which plugins or the bridge have settled.
    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let network = request
            .into_inner()
            .runtime_config
            .and_then(|config| config.network_config);
        if let Some(network) = network.filter(|network| !network.pod_cidr.is_empty()) {
            tracing::info!(
                pod_cidr = network.pod_cidr,
                "the client's range of pod addresses is not used: the network has its own"
            );
        }
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let pod_sandbox_id = self.run_sandbox(request.into_inner()).await?;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        self.stop_sandbox(&request.get_ref().pod_sandbox_id).await?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        self.remove_sandbox(&request.get_ref().pod_sandbox_id).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let answer = self.describe_sandbox(request.get_ref()).await?;
        Ok(Response::new(answer))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let items = self.list_sandboxes(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        self.update_sandbox(request.into_inner()).await?;
        Ok(Response::new(v1::UpdatePodSandboxResourcesResponse {}))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let container_id = self.create_container(request.into_inner()).await?;
        Ok(Response::new(v1::CreateContainerResponse { container_id }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        self.start_container(&request.get_ref().container_id).await?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        self.stop_container(request.get_ref()).await?;
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        self.remove_container(&request.get_ref().container_id).await?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let containers = self.list_containers(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let answer = self.describe_container(request.get_ref()).await?;
        Ok(Response::new(answer))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        self.update_container(request.into_inner()).await?;
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        self.reopen_log(&request.get_ref().container_id).await?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let answer = self.exec_sync(request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let url = self.exec(request.into_inner()).await?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let url = self.attach(request.into_inner()).await?;
        Ok(Response::new(v1::AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let url = self.port_forward(request.into_inner()).await?;
        Ok(Response::new(v1::PortForwardResponse { url }))
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let stats = self.stats_of(&request.get_ref().container_id).await?;
        Ok(Response::new(v1::ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let stats = self.list_stats(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let stats = self.sandbox_stats_of(&request.get_ref().pod_sandbox_id).await?;
        Ok(Response::new(v1::PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let stats = self.list_sandbox_stats(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        let descriptors = metrics::descriptors();
        Ok(Response::new(v1::ListMetricDescriptorsResponse { descriptors }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        let pod_metrics = self.sandbox_metrics().await?;
        Ok(Response::new(v1::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn checkpoint_container(
        &self,
        _: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        Err(Status::unimplemented(
            "this runtime makes no checkpoints of containers",
        ))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<BoxStream<v1::ContainerEventResponse>> {
        Ok(Response::new(self.follow_events()))
    }
}
