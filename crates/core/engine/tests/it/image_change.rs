//! A pod whose plan names another image than the one that runs.

use std::sync::Arc;

use pulselet_engine::io::{ImageFailure, Pulled};
use pulselet_engine::plan::{ContainerPlan, RestartPolicy};
use pulselet_engine::{Action, Input, LifeKey, PodPlan, Settings, Span};

use crate::driven::{APP, Driven, FIRST, SECOND, at, container, created, exited};

fn with_image(image: &str, restart: RestartPolicy) -> ContainerPlan {
    ContainerPlan {
        image: image.into(),
        restart,
        ..container()
    }
}

fn replanned(container: ContainerPlan) -> Input {
    let plan = PodPlan {
        grace: Some(Span::from_secs(30)),
        active_deadline: None,
        containers: vec![Arc::new(container)],
    };
    let plan = Arc::new(plan);
    Input::Replan {
        running: Arc::clone(&plan),
        plan,
        settings: Settings::default(),
    }
}

#[test]
fn another_image_replaces_the_life_that_has_the_old_one() {
    let never = RestartPolicy::Never;
    let mut driven = Driven::running(with_image("app:1", never));
    driven.give(5, replanned(with_image("app:2", never)));
    let grace = Span::from_secs(30);
    assert_eq!(driven.out.actions, [Action::Stop { life: FIRST, grace }]);
    let killing = &driven.out.events[0];
    assert_eq!(
        (killing.reason, killing.message.as_str()),
        ("Killing", "Container app definition changed, will be restarted")
    );
    let image = |driven: &Driven| driven.pod.status().containers[0].image.to_string();
    assert_eq!(image(&driven), "app:1", "it still runs");
    driven.give(6, exited(FIRST, 6, 0));
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: APP }]);
    assert_eq!(image(&driven), "app:2", "it is being made");
    // Nothing else follows from the same manifest.
    driven.give(6, replanned(with_image("app:2", never)));
    assert_eq!(driven.out.actions, []);
}

#[test]
fn another_image_ends_every_wait_and_the_back_off() {
    let always = RestartPolicy::Always;
    let mut driven = Driven::running(with_image("app:1", always));
    let pulled = || Input::ImageReady {
        container: APP,
        pulled: Pulled::AlreadyPresent,
    };
    driven.give(1, exited(FIRST, 1, 1));
    driven.give(1, pulled());
    driven.give(1, created(SECOND));
    driven.give(1, exited(SECOND, 2, 1));
    assert_eq!(
        driven.pod.next_deadline(),
        Some(at(12)),
        "the back-off is ten seconds"
    );
    driven.give(3, replanned(with_image("app:2", always)));
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: APP }]);
    let failed = Input::ImageFailed {
        container: APP,
        error: ImageFailure::ErrImagePull,
        message: "why".to_owned(),
    };
    driven.give(4, failed);
    assert_eq!(driven.out.actions, []);
    driven.give(5, replanned(with_image("app:3", always)));
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: APP }]);
    let third = LifeKey {
        container: APP,
        attempt: 2,
    };
    driven.give(5, pulled());
    assert_eq!(driven.out.actions, [Action::Create { life: third }]);
    // Yet another comes while the life is being made: it is made, and replaced.
    driven.give(6, replanned(with_image("app:4", always)));
    driven.give(7, created(third));
    assert_eq!(&*driven.pod.status().containers[0].image, "app:3");
    driven.give(
        7,
        Input::Running {
            life: third,
            at: at(7),
        },
    );
    let grace = Span::from_secs(30);
    assert_eq!(driven.out.actions, [Action::Stop { life: third, grace }]);
}
