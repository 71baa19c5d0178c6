//! The part of the settings that is about a node's duties: reserved resources, names, logs, images, eviction.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pulselet_engine::time::Span;
use pulselet_model::ResourceTotals;
use pulselet_model::openapi::apimachinery::pkg::api::resource::Quantity;
use pulselet_model::quantity::Amount;
use serde_saphyr::Spanned;

use super::{ConfigError, File};
use crate::duration::parse_duration;
use crate::duties::{
    ClusterDns, EvictionSettings, EvictionThreshold, Floor, ImageBounds, LogBounds, NodeDuties,
    PressureSignal, ShutdownPeriods,
};

/// Resources that can be kept from pods.
const RESERVABLE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// What a kubelet takes as a period of the shutdown.
const SHORTEST_SHUTDOWN: Span = Span::from_secs(1);
/// Name servers that resolvers look at.
const MAX_SERVERS: usize = 3;
const NANOS: i128 = 1_000_000_000;

pub(super) type Texts = BTreeMap<String, Spanned<String>>;

impl File {
    pub(super) fn duties(&self) -> Result<NodeDuties, ConfigError> {
        let defaults = NodeDuties::default();
        let mut reserved = reserved("kubeReserved", &self.kube_reserved)?;
        reserved.add(&self::reserved("systemReserved", &self.system_reserved)?);
        Ok(NodeDuties {
            reserved,
            max_pods: match &self.max_pods {
                None => defaults.max_pods,
                Some(most) => positive("maxPods", most)?,
            },
            dns: ClusterDns {
                servers: self.servers()?,
                domain: match &self.cluster_domain {
                    None => defaults.dns.domain,
                    Some(domain) => cluster_domain(domain)?,
                },
            },
            logs: self.log_bounds(defaults.logs)?,
            images: self.image_bounds(defaults.images)?,
            eviction: self.eviction(defaults.eviction)?,
            shutdown: self.shutdown()?,
        })
    }

    fn servers(&self) -> Result<Vec<IpAddr>, ConfigError> {
        let servers: Result<Vec<_>, _> = self.cluster_dns.iter().map(server).collect();
        let servers = servers?;
        if let Some(one_too_many) = self.cluster_dns.get(MAX_SERVERS) {
            let message =
                format!("clusterDNS names more than {MAX_SERVERS} servers, which resolvers do not ask");
            return Err(ConfigError::new(Some(one_too_many.referenced), message));
        }
        Ok(servers)
    }

    fn log_bounds(&self, defaults: LogBounds) -> Result<LogBounds, ConfigError> {
        let max_size = match &self.container_log_max_size {
            None => defaults.max_size,
            Some(text) => bytes("containerLogMaxSize", text)?,
        };
        let max_files = match &self.container_log_max_files {
            None => defaults.max_files,
            Some(files) if files.value < 2 => {
                let message = format!("containerLogMaxFiles is {}, the least is 2", files.value);
                return Err(ConfigError::new(Some(files.referenced), message));
            }
            Some(files) => positive("containerLogMaxFiles", files)?,
        };
        Ok(LogBounds { max_size, max_files })
    }

    fn image_bounds(&self, defaults: ImageBounds) -> Result<ImageBounds, ConfigError> {
        let percent = |name: &str, value: &Option<Spanned<i64>>, default: u8| match value {
            None => Ok(default),
            Some(value) => u8::try_from(value.value)
                .ok()
                .filter(|percent| *percent <= 100)
                .ok_or_else(|| {
                    let message = format!("{name} is {}, a percentage is between 0 and 100", value.value);
                    ConfigError::new(Some(value.referenced), message)
                }),
        };
        let high = &self.image_gc_high_threshold_percent;
        let bounds = ImageBounds {
            high_percent: percent("imageGCHighThresholdPercent", high, defaults.high_percent)?,
            low_percent: percent(
                "imageGCLowThresholdPercent",
                &self.image_gc_low_threshold_percent,
                defaults.low_percent,
            )?,
            minimum_age: match &self.image_minimum_gc_age {
                None => defaults.minimum_age,
                Some(text) => duration(text)?,
            },
        };
        let place = high.as_ref().or(self.image_gc_low_threshold_percent.as_ref());
        if let Some(place) = place.filter(|_| bounds.low_percent >= bounds.high_percent) {
            let message = format!(
                "imageGCLowThresholdPercent ({}) must be less than imageGCHighThresholdPercent ({})",
                bounds.low_percent, bounds.high_percent
            );
            return Err(ConfigError::new(Some(place.referenced), message));
        }
        Ok(bounds)
    }

    fn shutdown(&self) -> Result<ShutdownPeriods, ConfigError> {
        let for_critical = self.shutdown_grace_period_critical_pods.as_ref();
        let periods = ShutdownPeriods {
            total: shutdown_period("shutdownGracePeriod", self.shutdown_grace_period.as_ref())?,
            critical: shutdown_period("shutdownGracePeriodCriticalPods", for_critical)?,
        };
        if let Some(text) = for_critical.filter(|_| periods.critical > periods.total) {
            let message = format!(
                "shutdownGracePeriodCriticalPods is {}, which is a part of shutdownGracePeriod and cannot be longer",
                text.value
            );
            return Err(ConfigError::new(Some(text.referenced), message));
        }
        Ok(periods)
    }

    fn eviction(&self, defaults: EvictionSettings) -> Result<EvictionSettings, ConfigError> {
        let is_explicit = self.eviction_hard.is_some() || self.eviction_soft.is_some();
        let mut thresholds = match &self.eviction_hard {
            Some(hard) => hard
                .iter()
                .map(|(name, text)| threshold("evictionHard", name, text, None))
                .collect::<Result<_, _>>()?,
            None => defaults.thresholds,
        };
        let graces = self.eviction_soft_grace_period.as_ref();
        for (name, text) in self.eviction_soft.iter().flatten() {
            let grace = graces.and_then(|graces| graces.get(name)).ok_or_else(|| {
                let message =
                    format!("evictionSoft has {name}, and evictionSoftGracePeriod does not say how long");
                ConfigError::new(Some(text.referenced), message)
            })?;
            thresholds.push(threshold("evictionSoft", name, text, Some(duration(grace)?))?);
        }
        for (name, text) in graces.into_iter().flatten() {
            if self
                .eviction_soft
                .as_ref()
                .is_none_or(|soft| !soft.contains_key(name))
            {
                let message = format!("evictionSoftGracePeriod has {name}, and evictionSoft does not");
                return Err(ConfigError::new(Some(text.referenced), message));
            }
        }
        Ok(EvictionSettings {
            thresholds,
            max_pod_grace: match &self.eviction_max_pod_grace_period {
                None => defaults.max_pod_grace,
                Some(seconds) => {
                    Span::from_secs(u64::from(not_negative("evictionMaxPodGracePeriod", seconds)?))
                }
            },
            transition_period: match &self.eviction_pressure_transition_period {
                None => defaults.transition_period,
                Some(text) => duration(text)?,
            },
            is_explicit,
        })
    }
}

fn shutdown_period(name: &str, text: Option<&Spanned<String>>) -> Result<Span, ConfigError> {
    let Some(text) = text else {
        return Ok(Span::ZERO);
    };
    let period = duration(text)?;
    if period != Span::ZERO && period < SHORTEST_SHUTDOWN {
        let message = format!("{name} is {}, it must be 0s or at least 1s", text.value);
        return Err(ConfigError::new(Some(text.referenced), message));
    }
    Ok(period)
}

fn reserved(key: &str, texts: &Texts) -> Result<ResourceTotals, ConfigError> {
    let mut list = BTreeMap::new();
    for (name, text) in texts {
        let place = Some(text.referenced);
        if !RESERVABLE.contains(&name.as_str()) {
            let known = RESERVABLE.join(", ");
            let message = format!("{key} has {name}, which cannot be reserved; known resources: {known}");
            return Err(ConfigError::new(place, message));
        }
        let amount = Amount::parse(&text.value).map_err(|error| ConfigError::new(place, error))?;
        if amount.is_negative() {
            let message = format!("{key}.{name} is {}, it cannot be negative", text.value);
            return Err(ConfigError::new(place, message));
        }
        list.insert(name.clone(), Quantity(text.value.clone()));
    }
    Ok(ResourceTotals::read(&list))
}

fn server(text: &Spanned<String>) -> Result<IpAddr, ConfigError> {
    text.value.parse().map_err(|_| {
        let message = format!("{:?} is not the address of a name server", text.value);
        ConfigError::new(Some(text.referenced), message)
    })
}

/// Also what a flag may say.
pub fn parse_cluster_domain(text: &str) -> Result<String, &'static str> {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let has_edges = !label.starts_with('-') && !label.ends_with('-');
        !label.is_empty() && label.len() <= 63 && has_edges && label.bytes().all(is_plain)
    };
    let domain = text.strip_suffix('.').unwrap_or(text);
    if domain.len() <= 253 && domain.split('.').all(is_label) {
        Ok(domain.to_owned())
    } else {
        Err(
            "a cluster's domain consists of labels of lower case letters, digits and '-', such as cluster.local",
        )
    }
}

fn cluster_domain(text: &Spanned<String>) -> Result<String, ConfigError> {
    parse_cluster_domain(&text.value).map_err(|why| ConfigError::new(Some(text.referenced), why))
}

fn duration(text: &Spanned<String>) -> Result<Span, ConfigError> {
    parse_duration(&text.value).map_err(|error| ConfigError::new(Some(text.referenced), error))
}

fn not_negative(name: &str, value: &Spanned<i64>) -> Result<u32, ConfigError> {
    u32::try_from(value.value).map_err(|_| {
        let message = format!(
            "{name} is {}, it must be a number from 0 to {}",
            value.value,
            u32::MAX
        );
        ConfigError::new(Some(value.referenced), message)
    })
}

fn positive(name: &str, value: &Spanned<i64>) -> Result<u32, ConfigError> {
    let number = not_negative(name, value)?;
    if number == 0 {
        let message = format!("{name} is 0, the least is 1");
        return Err(ConfigError::new(Some(value.referenced), message));
    }
    Ok(number)
}

fn bytes(name: &str, text: &Spanned<String>) -> Result<u64, ConfigError> {
    let place = Some(text.referenced);
    let amount = Amount::parse(&text.value).map_err(|error| ConfigError::new(place, error))?;
    let bytes = u64::try_from(amount.nanos() / NANOS)
        .ok()
        .filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        ConfigError::new(
            place,
            format!("{name} is {}, it must be more than nothing", text.value),
        )
    })
}

/// `None` if it is not the number of a percentage.
fn part(percent: &str) -> Option<Floor> {
    let percent = percent.parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most ten thousand and not negative"
    )]
    Some(Floor::Part((percent * 100.0).round() as u32))
}

fn threshold(
    key: &str,
    name: &str,
    text: &Spanned<String>,
    soft: Option<Span>,
) -> Result<EvictionThreshold, ConfigError> {
    let place = Some(text.referenced);
    let signal = PressureSignal::ALL
        .into_iter()
        .find(|signal| signal.as_str() == name);
    let signal = signal.ok_or_else(|| {
        let known: Vec<_> = PressureSignal::ALL.iter().map(|signal| signal.as_str()).collect();
        let message = format!(
            "{key} has {name}, which is not measured; known signals: {}",
            known.join(", ")
        );
        ConfigError::new(place, message)
    })?;
    let floor = if let Some(percent) = text.value.strip_suffix('%') {
        part(percent).ok_or_else(|| {
            let message = format!(
                "{key}.{name} is {}, a percentage is between 0% and 100%",
                text.value
            );
            ConfigError::new(place, message)
        })?
    } else {
        let amount = Amount::parse(&text.value).map_err(|error| ConfigError::new(place, error))?;
        let amount = u64::try_from(amount.nanos() / NANOS).map_err(|_| {
            let message = format!("{key}.{name} is {}, it cannot be negative", text.value);
            ConfigError::new(place, message)
        })?;
        Floor::Amount(amount)
    };
    Ok(EvictionThreshold { signal, floor, soft })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    fn duties(text: &str) -> NodeDuties {
        NodeConfig::parse(text).expect("settings").duties
    }

    fn error(text: &str) -> String {
        NodeConfig::parse(text).expect_err("an error").to_string()
    }

    #[test]
    fn every_duty_is_read() {
        let duties = duties(
            r#"
kubeReserved: {cpu: 100m, memory: 1Gi}
systemReserved: {cpu: 400m, ephemeral-storage: 1Gi}
maxPods: 250
clusterDNS: [10.96.0.10, "fd00::a"]
clusterDomain: shop.example.
containerLogMaxSize: 1Mi
containerLogMaxFiles: 3
imageGCHighThresholdPercent: 90
imageGCLowThresholdPercent: 70
imageMinimumGCAge: 10m
evictionHard: {memory.available: 200Mi, nodefs.available: 7.5%}
evictionSoft: {pid.available: 10%}
evictionSoftGracePeriod: {pid.available: 90s}
evictionMaxPodGracePeriod: 60
evictionPressureTransitionPeriod: 30s
shutdownGracePeriod: 60s
shutdownGracePeriodCriticalPods: 20s
"#,
        );
        assert_eq!(duties.reserved.cpu_millis, 500);
        assert_eq!(duties.shutdown.ordinary(), Span::from_secs(40));
        assert_eq!(duties.shutdown.critical, Span::from_secs(20));
        assert_eq!(
            (duties.reserved.memory, duties.reserved.ephemeral_storage),
            (1 << 30, 1 << 30)
        );
        assert_eq!(duties.max_pods, 250);
        let servers: Vec<IpAddr> = vec![[10, 96, 0, 10].into(), "fd00::a".parse().expect("an address")];
        assert_eq!(duties.dns.servers, servers);
        assert_eq!(duties.dns.domain, "shop.example");
        assert_eq!(
            duties.logs,
            LogBounds {
                max_size: 1 << 20,
                max_files: 3
            }
        );
        let images = ImageBounds {
            high_percent: 90,
            low_percent: 70,
            minimum_age: Span::from_secs(600),
        };
        assert_eq!(duties.images, images);
        let threshold = |signal, floor, soft| EvictionThreshold { signal, floor, soft };
        assert_eq!(
            duties.eviction,
            EvictionSettings {
                thresholds: vec![
                    threshold(PressureSignal::MemoryAvailable, Floor::Amount(200 << 20), None),
                    threshold(PressureSignal::NodeFsAvailable, Floor::Part(750), None),
                    threshold(
                        PressureSignal::PidAvailable,
                        Floor::Part(1000),
                        Some(Span::from_secs(90))
                    ),
                ],
                max_pod_grace: Span::from_secs(60),
                transition_period: Span::from_secs(30),
                is_explicit: true,
            }
        );
    }

    #[test]
    fn errors_of_duties_name_their_place_and_what_would_do() {
        insta::assert_snapshot!(error("kubeReserved: {gpu: 1}\n"), @"line 1, column 21: kubeReserved has gpu, which cannot be reserved; known resources: cpu, memory, ephemeral-storage");
        insta::assert_snapshot!(error("systemReserved: {cpu: -1}\n"), @"line 1, column 23: systemReserved.cpu is -1, it cannot be negative");
        insta::assert_snapshot!(error("maxPods: 0\n"), @"line 1, column 10: maxPods is 0, the least is 1");
        insta::assert_snapshot!(error("clusterDNS: [resolver]\n"), @r#"line 1, column 14: "resolver" is not the address of a name server"#);
        insta::assert_snapshot!(error("clusterDNS: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]\n"), @"line 1, column 41: clusterDNS names more than 3 servers, which resolvers do not ask");
        insta::assert_snapshot!(error("clusterDomain: Cluster_Local\n"), @"line 1, column 16: a cluster's domain consists of labels of lower case letters, digits and '-', such as cluster.local");
        insta::assert_snapshot!(error("containerLogMaxSize: 0\n"), @"line 1, column 22: containerLogMaxSize is 0, it must be more than nothing");
        insta::assert_snapshot!(error("containerLogMaxFiles: 1\n"), @"line 1, column 23: containerLogMaxFiles is 1, the least is 2");
        insta::assert_snapshot!(error("imageGCHighThresholdPercent: 101\n"), @"line 1, column 30: imageGCHighThresholdPercent is 101, a percentage is between 0 and 100");
        insta::assert_snapshot!(error("imageGCHighThresholdPercent: 80\n"), @"line 1, column 30: imageGCLowThresholdPercent (80) must be less than imageGCHighThresholdPercent (80)");
        insta::assert_snapshot!(error("evictionHard: {disk.available: 1Gi}\n"), @"line 1, column 32: evictionHard has disk.available, which is not measured; known signals: memory.available, nodefs.available, nodefs.inodesFree, pid.available");
        insta::assert_snapshot!(error("evictionHard: {memory.available: 101%}\n"), @"line 1, column 34: evictionHard.memory.available is 101%, a percentage is between 0% and 100%");
        insta::assert_snapshot!(error("evictionSoft: {memory.available: 1Gi}\n"), @"line 1, column 34: evictionSoft has memory.available, and evictionSoftGracePeriod does not say how long");
        insta::assert_snapshot!(error("shutdownGracePeriod: 500ms\n"), @"line 1, column 22: shutdownGracePeriod is 500ms, it must be 0s or at least 1s");
        insta::assert_snapshot!(error("shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 6s\n"), @"line 2, column 34: shutdownGracePeriodCriticalPods is 6s, which is a part of shutdownGracePeriod and cannot be longer");
        insta::assert_snapshot!(error("evictionSoftGracePeriod: {memory.available: 1m}\n"), @"line 1, column 45: evictionSoftGracePeriod has memory.available, and evictionSoft does not");
    }
}
