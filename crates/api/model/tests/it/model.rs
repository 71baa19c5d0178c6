//! Our types have every field of the v1.36 types they stand for, so that nothing a user writes is lost or refused.

use std::collections::BTreeSet;
use std::fmt;

use pulselet_model::openapi::api::core::v1 as upstream;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A deserializer that asks a type for the names of its fields, and that is all.
struct FieldNames;

#[derive(Debug)]
enum Answer {
    Fields(BTreeSet<&'static str>),
    None,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::None
    }
}

impl<'de> Deserializer<'de> for FieldNames {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer::None)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer::Fields(fields.iter().copied().collect()))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
    match T::deserialize(FieldNames) {
        Err(Answer::Fields(fields)) => fields,
        Err(Answer::None) | Ok(_) => panic!("the type is not a struct"),
    }
}

/// `T` has the fields of `U` and these more.
fn check<'de, T: Deserialize<'de>, U: Deserialize<'de>>(ours: &[&'static str]) {
    let mut expected = fields::<U>();
    expected.extend(ours);
    assert_eq!(fields::<T>(), expected, "{}", std::any::type_name::<T>());
}

#[test]
fn every_upstream_field_exists() {
    check::<pulselet_model::Pod, upstream::Pod>(&["apiVersion", "kind"]);
    check::<pulselet_model::PodSpec, upstream::PodSpec>(&[]);
    check::<pulselet_model::PodStatus, upstream::PodStatus>(&[]);
    check::<pulselet_model::ContainerStatusFields, upstream::ContainerStatus>(&["lifecycle"]);
    check::<pulselet_model::Container, upstream::Container>(&[]);
    check::<pulselet_model::EphemeralContainer, upstream::EphemeralContainer>(&[]);
    check::<pulselet_model::ContainerPort, upstream::ContainerPort>(&[]);
    check::<pulselet_model::PodOs, upstream::PodOS>(&[]);
    check::<pulselet_model::Probe, upstream::Probe>(&[
        "initialDelayMilliseconds",
        "periodMilliseconds",
        "timeoutMilliseconds",
        "initializationFailureThreshold",
    ]);
    check::<pulselet_model::Lifecycle, upstream::Lifecycle>(&[]);
    check::<pulselet_model::LifecycleHandler, upstream::LifecycleHandler>(&[]);
    check::<pulselet_model::HttpGetAction, upstream::HTTPGetAction>(&[]);
    check::<pulselet_model::HttpHeader, upstream::HTTPHeader>(&[]);
    check::<pulselet_model::TcpSocketAction, upstream::TCPSocketAction>(&[]);
    check::<pulselet_model::GrpcAction, upstream::GRPCAction>(&[]);
    check::<pulselet_model::ExecAction, upstream::ExecAction>(&[]);
    check::<pulselet_model::SleepAction, upstream::SleepAction>(&[]);
}
