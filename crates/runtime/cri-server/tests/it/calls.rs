//! Calls in the order in which a kubelet makes them, asked twice, and across a restart of the server.

use pulselet_cri_server::{CriServeError, CriServer};
use pulselet_cri_wire::v1;
use pulselet_runtime::ImageSummary;
use pulselet_runtime_fake::{ImageScript, LifeScript};
use tonic::Code;

use crate::world::{IMAGE, PATIENCE, World, container, sandbox};

#[tokio::test]
async fn what_was_asked_for_is_told_again() {
    let world = World::new().await;
    let (pod, id) = world.run("web").await;
    let mut client = world.client();
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: pod.clone(),
        verbose: true,
    };
    let answer = client
        .pod_sandbox_status(request)
        .await
        .expect("is there")
        .into_inner();
    let status = answer.status.expect("has a status");
    assert_eq!(status.metadata, sandbox("web").metadata);
    assert_eq!(
        (status.labels, status.annotations),
        (sandbox("web").labels, sandbox("web").annotations)
    );
    assert_eq!(answer.containers_statuses.len(), 1);
    assert!(answer.info.contains_key("info"));
    let request = v1::ContainerStatusRequest {
        container_id: id.clone(),
        verbose: false,
    };
    let answer = client
        .container_status(request)
        .await
        .expect("is there")
        .into_inner();
    let status = answer.status.expect("has a status");
    assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    assert_eq!(
        (status.image_id.as_str(), status.image_ref.as_str()),
        ("sha256:1", "registry.example/app@sha256:2")
    );
    assert_eq!((status.labels, answer.info.len()), (container("web").labels, 0));
    assert_eq!(status.image.expect("has an image").image, IMAGE);
}

#[tokio::test]
async fn lists_are_filtered() {
    let world = World::new().await;
    let (web, app) = world.run("web").await;
    let (db, _) = world.run("db").await;
    let mut client = world.client();
    let mut pods = async |filter: v1::PodSandboxFilter| {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        let answer = client
            .list_pod_sandbox(request)
            .await
            .expect("lists")
            .into_inner();
        let mut ids: Vec<String> = answer.items.into_iter().map(|item| item.id).collect();
        ids.sort();
        ids
    };
    let mut both = vec![web.clone(), db.clone()];
    both.sort();
    assert_eq!(pods(v1::PodSandboxFilter::default()).await, both);
    let labelled = v1::PodSandboxFilter {
        label_selector: [("app".to_owned(), "db".to_owned())].into(),
        ..v1::PodSandboxFilter::default()
    };
    assert_eq!(pods(labelled).await, [db]);
    let not_ready = v1::PodSandboxFilter {
        state: Some(v1::PodSandboxStateValue {
            state: v1::PodSandboxState::SandboxNotready.into(),
        }),
        ..v1::PodSandboxFilter::default()
    };
    assert_eq!(pods(not_ready).await, [""; 0]);
    let filter = v1::ContainerFilter {
        pod_sandbox_id: web,
        state: Some(v1::ContainerStateValue {
            state: v1::ContainerState::ContainerRunning.into(),
        }),
        ..v1::ContainerFilter::default()
    };
    let request = v1::ListContainersRequest { filter: Some(filter) };
    let answer = world
        .client()
        .list_containers(request)
        .await
        .expect("lists")
        .into_inner();
    let ids: Vec<String> = answer.containers.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, [app]);
}

#[tokio::test]
async fn a_client_that_asks_twice_is_answered_twice() {
    let world = World::new().await;
    let (pod, id) = world.run("web").await;
    let mut client = world.client();
    for _ in 0..2 {
        let request = v1::StopContainerRequest {
            container_id: id.clone(),
            timeout: 1,
        };
        client.stop_container(request).await.expect("stops");
    }
    for _ in 0..2 {
        let request = v1::RemoveContainerRequest {
            container_id: id.clone(),
        };
        client.remove_container(request).await.expect("removes");
    }
    let request = v1::ContainerStatusRequest {
        container_id: id,
        verbose: false,
    };
    let gone = client.container_status(request).await.expect_err("is gone");
    assert_eq!(gone.code(), Code::NotFound);
    for _ in 0..2 {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        };
        client.stop_pod_sandbox(request).await.expect("stops");
    }
    for _ in 0..2 {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        };
        client.remove_pod_sandbox(request).await.expect("removes");
    }
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: pod,
        verbose: false,
    };
    let gone = client.pod_sandbox_status(request).await.expect_err("is gone");
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn a_server_that_is_replaced_knows_all_that_the_one_before_knew() {
    let mut world = World::new().await;
    let (pod, id) = world.run("web").await;
    world.stop().await;
    assert!(!world.socket().exists(), "nobody is to wait at it");
    world.start().await;
    let mut client = world.client();
    let request = v1::ListContainersRequest::default();
    let answer = client.list_containers(request).await.expect("lists").into_inner();
    assert_eq!(answer.containers.len(), 1);
    let found = &answer.containers[0];
    assert_eq!((&found.id, &found.pod_sandbox_id), (&id, &pod));
    assert_eq!(found.labels, container("web").labels);
}

#[tokio::test]
async fn a_second_server_does_not_take_the_socket() {
    let world = World::new().await;
    let second = CriServer::start(world.options()).await;
    assert!(matches!(second, Err(CriServeError::InUse { .. })), "{second:?}");
    world.run("web").await;
}

#[tokio::test]
async fn a_socket_that_a_killed_server_has_left_is_taken() {
    let mut world = World::new().await;
    world.stop().await;
    drop(std::os::unix::net::UnixListener::bind(world.socket()).expect("binds"));
    assert!(world.socket().exists());
    world.start().await;
    world.run("web").await;
}

#[tokio::test]
async fn events_carry_the_pod() {
    let world = World::new().await;
    let mut client = world.client();
    let events = client.get_container_events(v1::GetEventsRequest {}).await;
    let mut events = events.expect("follows").into_inner();
    world.runtime.script("web", [LifeScript::default()]);
    let (pod, id) = world.run("web").await;
    let request = v1::StopContainerRequest {
        container_id: id.clone(),
        timeout: 1,
    };
    client.stop_container(request).await.expect("stops");
    let stopped = async {
        loop {
            let event = events.message().await.expect("goes on").expect("goes on");
            if event.container_id == id
                && event.container_event_type() == v1::ContainerEventType::ContainerStoppedEvent
            {
                return event;
            }
        }
    };
    let event = tokio::time::timeout(PATIENCE, stopped).await.expect("is told");
    assert_eq!(event.pod_sandbox_status.expect("has the pod").id, pod);
    let state = event.containers_statuses.first().map(v1::ContainerStatus::state);
    assert_eq!(state, Some(v1::ContainerState::ContainerExited));
}

#[tokio::test]
async fn images_are_found_by_every_name_and_may_be_pinned() {
    let world = World::new().await;
    let mut images = world.images();
    let request = v1::ImageStatusRequest {
        image: Some(v1::ImageSpec {
            image: IMAGE.into(),
            ..v1::ImageSpec::default()
        }),
        verbose: true,
    };
    let answer = images.image_status(request).await.expect("asks").into_inner();
    let image = answer.image.expect("is there");
    assert!(image.pinned && image.id == "sha256:1", "{image:?}");
    assert!(answer.info.contains_key("info"));
    let request = v1::ImageStatusRequest {
        image: Some(v1::ImageSpec {
            image: "registry.example/none:1".into(),
            ..v1::ImageSpec::default()
        }),
        verbose: false,
    };
    let answer = images.image_status(request).await.expect("asks").into_inner();
    assert_eq!(answer.image, None, "what is not there is no error");
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    let world = World::new().await;
    let mut client = world.client();
    let version = client
        .version(v1::VersionRequest::default())
        .await
        .expect("answers")
        .into_inner();
    assert_eq!(
        (version.version.as_str(), version.runtime_api_version.as_str()),
        ("0.1.0", "v1")
    );
    let status = client
        .status(v1::StatusRequest { verbose: true })
        .await
        .expect("answers")
        .into_inner();
    let conditions = status.status.expect("has conditions").conditions;
    assert!(
        conditions.iter().all(|condition| condition.status),
        "{conditions:?}"
    );
    assert_eq!(status.runtime_handlers.len(), 1);
    let config = client
        .runtime_config(v1::RuntimeConfigRequest {})
        .await
        .expect("answers")
        .into_inner();
    let driver = config.linux.expect("is Linux").cgroup_driver();
    assert_eq!(driver, v1::CgroupDriver::Cgroupfs);
}

#[tokio::test]
async fn an_image_that_is_mounted_must_be_there() {
    let world = World::new().await;
    let site = ImageSummary {
        id: "sha256:7".into(),
        tags: vec!["registry.example/site:1".into()],
        ..ImageSummary::default()
    };
    let script = ImageScript::Present(site);
    world.runtime.script_image("registry.example/site:1", script);
    let (pod, _) = world.run("web").await;
    let ask = async |name: &str, image: &str| {
        let mount = v1::Mount {
            container_path: "/site".into(),
            readonly: true,
            image: Some(v1::ImageSpec {
                image: image.into(),
                ..v1::ImageSpec::default()
            }),
            image_sub_path: "a".into(),
            ..v1::Mount::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(v1::ContainerConfig {
                mounts: vec![mount],
                ..container(name)
            }),
            sandbox_config: None,
        };
        world.client().create_container(request).await
    };
    let missing = ask("missing", "registry.example/none:1").await;
    let missing = missing.expect_err("is not there");
    assert_eq!(missing.code(), Code::NotFound);
    assert!(missing.message().contains("pull it first"), "{missing:?}");
    ask("reads", "registry.example/site:1").await.expect("creates");
    let config = world.runtime.config("reads", 0).expect("was asked for");
    let image = config.mounts[0].image.as_ref().expect("is an image");
    assert_eq!(
        (image.id.as_str(), image.reference.as_str()),
        ("sha256:7", "registry.example/site:1")
    );
    assert_eq!(
        config.mounts[0].sub_path.as_deref(),
        Some(std::path::Path::new("a"))
    );
}
