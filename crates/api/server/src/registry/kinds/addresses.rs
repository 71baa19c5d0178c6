//! Addresses at which services are reached: they must mean the same machine to everybody who reads them.

use std::net::IpAddr;

use pulselet_model::FieldError;
use serde_json::Value;

use super::invalid;
use crate::registry::object::Object;
use crate::registry::services::KUBERNETES;

/// What is wrong with the addresses that an object of this kind leads to.
pub(super) fn errors(kind: &str, object: &Object) -> Vec<FieldError> {
    let found = match kind {
        // The server's own lead to wherever it listens, which may be this machine alone.
        "Endpoints" | "EndpointSlice" if object.namespace() == "default" && object.name() == KUBERNETES => {
            return Vec::new();
        }
        "Endpoints" => of_endpoints(object),
        "EndpointSlice" => of_slice(object),
        "Service" => of_service(object),
        _ => return Vec::new(),
    };
    let wrong = found.into_iter().filter_map(|(field, address)| {
        let why = complaint(address.as_str().unwrap_or_default())?;
        Some(invalid(&field, address, why))
    });
    wrong.collect()
}

fn complaint(address: &str) -> Option<&'static str> {
    let Ok(address) = address.parse::<IpAddr>() else {
        return Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
    };
    let (is_link_local, is_link_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => (
            address.is_unicast_link_local(),
            address.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if address.is_unspecified() {
        Some("may not be unspecified (0.0.0.0 or ::)")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if is_link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if is_link_local_multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    } else {
        None
    }
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let items = value.get(field).and_then(Value::as_array);
    items.into_iter().flatten().enumerate()
}

fn of_endpoints(endpoints: &Object) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (subset_index, subset) in items(endpoints.value(), "subsets") {
        for field in ["addresses", "notReadyAddresses"] {
            for (index, address) in items(subset, field) {
                let place = format!("subsets[{subset_index}].{field}[{index}].ip");
                found.push((place, &address["ip"]));
            }
        }
    }
    found
}

fn of_slice(slice: &Object) -> Vec<(String, &Value)> {
    // The others are names.
    if !["IPv4", "IPv6"].contains(&slice.text("/addressType")) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (endpoint_index, endpoint) in items(slice.value(), "endpoints") {
        for (index, address) in items(endpoint, "addresses") {
            found.push((format!("endpoints[{endpoint_index}].addresses[{index}]"), address));
        }
    }
    found
}

fn of_service(service: &Object) -> Vec<(String, &Value)> {
    let spec = &service.value()["spec"];
    let places = items(spec, "externalIPs");
    places
        .map(|(index, address)| (format!("spec.externalIPs[{index}]"), address))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaints(kind: &str, object: Value) -> Vec<String> {
        let object = Object::new(object).expect("an object");
        let errors = errors(kind, &object);
        errors.into_iter().map(|error| error.to_string()).collect()
    }

    #[test]
    fn addresses_that_mean_another_machine_to_each_reader_are_refused_wherever_they_are() {
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}]},
            {"addresses": [{"ip": "10.0.0.2"}, {"ip": "127.0.0.2"}], "notReadyAddresses": [{"ip": "0.0.0.0"}]},
        ]});
        let loopback = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
        assert_eq!(
            complaints("Endpoints", endpoints),
            [
                format!("subsets[1].addresses[1].ip: Invalid value: \"127.0.0.2\": {loopback}"),
                "subsets[1].notReadyAddresses[0].ip: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0 or ::)"
                    .to_owned(),
            ]
        );
        let slice = |family: &str, address: &str| {
            complaints(
                "EndpointSlice",
                json!({"addressType": family, "endpoints": [{"addresses": [address]}]}),
            )
        };
        assert_eq!(
            slice("IPv6", "::1"),
            [format!(
                "endpoints[0].addresses[0]: Invalid value: \"::1\": {loopback}"
            )]
        );
        assert_eq!(slice("IPv4", "fe80::1").len(), 1);
        assert_eq!(slice("IPv4", "224.0.0.9").len(), 1);
        assert_eq!(slice("IPv4", "localhost").len(), 1);
        assert_eq!(slice("FQDN", "localhost").len(), 0);
        assert_eq!(slice("IPv6", "2001:db8::1").len(), 0);
        let service = |address: &str| complaints("Service", json!({"spec": {"externalIPs": [address]}}));
        assert_eq!(service("169.254.169.254").len(), 1);
        assert_eq!(service("192.0.2.1").len(), 0);
    }

    #[test]
    fn the_servers_own_service_may_lead_to_the_machine_it_is_on() {
        let own = json!({
            "metadata": {"name": "kubernetes", "namespace": "default"},
            "subsets": [{"addresses": [{"ip": "127.0.0.1"}]}],
        });
        assert_eq!(complaints("Endpoints", own).len(), 0);
    }
}
