//! Pods in protobuf: their field numbers, as v1.36 has them. The status is the server's and is not read.

use super::{Field, METADATA, Message};

static HOST_PATH_VOLUME_SOURCE: Message = Message(&[(1, "path", Field::Text), (2, "type", Field::Text)]);
static EMPTY_DIR_VOLUME_SOURCE: Message =
    Message(&[(1, "medium", Field::Text), (2, "sizeLimit", Field::Quantity)]);
static GCE_PERSISTENT_DISK_VOLUME_SOURCE: Message = Message(&[
    (1, "pdName", Field::Text),
    (2, "fsType", Field::Text),
    (3, "partition", Field::OptionalInteger),
    (4, "readOnly", Field::Bool),
]);
static AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE: Message = Message(&[
    (1, "volumeID", Field::Text),
    (2, "fsType", Field::Text),
    (3, "partition", Field::OptionalInteger),
    (4, "readOnly", Field::Bool),
]);
static GIT_REPO_VOLUME_SOURCE: Message = Message(&[
    (1, "repository", Field::Text),
    (2, "revision", Field::Text),
    (3, "directory", Field::Text),
]);
static KEY_TO_PATH: Message = Message(&[
    (1, "key", Field::Text),
    (2, "path", Field::Text),
    (3, "mode", Field::OptionalInteger),
]);
static SECRET_VOLUME_SOURCE: Message = Message(&[
    (1, "secretName", Field::Text),
    (2, "items", Field::Messages(&KEY_TO_PATH)),
    (3, "defaultMode", Field::OptionalInteger),
    (4, "optional", Field::Bool),
]);
static NFS_VOLUME_SOURCE: Message = Message(&[
    (1, "server", Field::Text),
    (2, "path", Field::Text),
    (3, "readOnly", Field::Bool),
]);
static LOCAL_OBJECT_REFERENCE: Message = Message(&[(1, "name", Field::Text)]);
static ISCSI_VOLUME_SOURCE: Message = Message(&[
    (1, "targetPortal", Field::Text),
    (2, "iqn", Field::Text),
    (3, "lun", Field::OptionalInteger),
    (4, "iscsiInterface", Field::Text),
    (5, "fsType", Field::Text),
    (6, "readOnly", Field::Bool),
    (7, "portals", Field::Texts),
    (8, "chapAuthDiscovery", Field::Bool),
    (10, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
    (11, "chapAuthSession", Field::Bool),
    (12, "initiatorName", Field::Text),
]);
static GLUSTERFS_VOLUME_SOURCE: Message = Message(&[
    (1, "endpoints", Field::Text),
    (2, "path", Field::Text),
    (3, "readOnly", Field::Bool),
]);
static PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE: Message =
    Message(&[(1, "claimName", Field::Text), (2, "readOnly", Field::Bool)]);
static RBD_VOLUME_SOURCE: Message = Message(&[
    (1, "monitors", Field::Texts),
    (2, "image", Field::Text),
    (3, "fsType", Field::Text),
    (4, "pool", Field::Text),
    (5, "user", Field::Text),
    (6, "keyring", Field::Text),
    (7, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
    (8, "readOnly", Field::Bool),
]);
static FLEX_VOLUME_SOURCE: Message = Message(&[
    (1, "driver", Field::Text),
    (2, "fsType", Field::Text),
    (3, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
    (4, "readOnly", Field::Bool),
    (5, "options", Field::TextMap),
]);
static CINDER_VOLUME_SOURCE: Message = Message(&[
    (1, "volumeID", Field::Text),
    (2, "fsType", Field::Text),
    (3, "readOnly", Field::Bool),
    (4, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
]);
static CEPH_FS_VOLUME_SOURCE: Message = Message(&[
    (1, "monitors", Field::Texts),
    (2, "path", Field::Text),
    (3, "user", Field::Text),
    (4, "secretFile", Field::Text),
    (5, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
    (6, "readOnly", Field::Bool),
]);
static FLOCKER_VOLUME_SOURCE: Message =
    Message(&[(1, "datasetName", Field::Text), (2, "datasetUUID", Field::Text)]);
static OBJECT_FIELD_SELECTOR: Message =
    Message(&[(1, "apiVersion", Field::Text), (2, "fieldPath", Field::Text)]);
static RESOURCE_FIELD_SELECTOR: Message = Message(&[
    (1, "containerName", Field::Text),
    (2, "resource", Field::Text),
    (3, "divisor", Field::Quantity),
]);
static DOWNWARD_API_VOLUME_FILE: Message = Message(&[
    (1, "path", Field::Text),
    (2, "fieldRef", Field::Message(&OBJECT_FIELD_SELECTOR)),
    (3, "resourceFieldRef", Field::Message(&RESOURCE_FIELD_SELECTOR)),
    (4, "mode", Field::OptionalInteger),
]);
static DOWNWARD_API_VOLUME_SOURCE: Message = Message(&[
    (1, "items", Field::Messages(&DOWNWARD_API_VOLUME_FILE)),
    (2, "defaultMode", Field::OptionalInteger),
]);
static FC_VOLUME_SOURCE: Message = Message(&[
    (1, "targetWWNs", Field::Texts),
    (2, "lun", Field::OptionalInteger),
    (3, "fsType", Field::Text),
    (4, "readOnly", Field::Bool),
    (5, "wwids", Field::Texts),
]);
static AZURE_FILE_VOLUME_SOURCE: Message = Message(&[
    (1, "secretName", Field::Text),
    (2, "shareName", Field::Text),
    (3, "readOnly", Field::Bool),
]);
static CONFIG_MAP_VOLUME_SOURCE: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "items", Field::Messages(&KEY_TO_PATH)),
    (3, "defaultMode", Field::OptionalInteger),
    (4, "optional", Field::Bool),
]);
static VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE: Message = Message(&[
    (1, "volumePath", Field::Text),
    (2, "fsType", Field::Text),
    (3, "storagePolicyName", Field::Text),
    (4, "storagePolicyID", Field::Text),
]);
static QUOBYTE_VOLUME_SOURCE: Message = Message(&[
    (1, "registry", Field::Text),
    (2, "volume", Field::Text),
    (3, "readOnly", Field::Bool),
    (4, "user", Field::Text),
    (5, "group", Field::Text),
    (6, "tenant", Field::Text),
]);
static AZURE_DISK_VOLUME_SOURCE: Message = Message(&[
    (1, "diskName", Field::Text),
    (2, "diskURI", Field::Text),
    (3, "cachingMode", Field::Text),
    (4, "fsType", Field::Text),
    (5, "readOnly", Field::Bool),
    (6, "kind", Field::Text),
]);
static PHOTON_PERSISTENT_DISK_VOLUME_SOURCE: Message =
    Message(&[(1, "pdID", Field::Text), (2, "fsType", Field::Text)]);
static SECRET_PROJECTION: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "items", Field::Messages(&KEY_TO_PATH)),
    (4, "optional", Field::Bool),
]);
static DOWNWARD_API_PROJECTION: Message =
    Message(&[(1, "items", Field::Messages(&DOWNWARD_API_VOLUME_FILE))]);
static CONFIG_MAP_PROJECTION: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "items", Field::Messages(&KEY_TO_PATH)),
    (4, "optional", Field::Bool),
]);
static SERVICE_ACCOUNT_TOKEN_PROJECTION: Message = Message(&[
    (1, "audience", Field::Text),
    (2, "expirationSeconds", Field::OptionalInteger),
    (3, "path", Field::Text),
]);
static LABEL_SELECTOR_REQUIREMENT: Message = Message(&[
    (1, "key", Field::Text),
    (2, "operator", Field::Text),
    (3, "values", Field::Texts),
]);
static LABEL_SELECTOR: Message = Message(&[
    (1, "matchLabels", Field::TextMap),
    (
        2,
        "matchExpressions",
        Field::Messages(&LABEL_SELECTOR_REQUIREMENT),
    ),
]);
static CLUSTER_TRUST_BUNDLE_PROJECTION: Message = Message(&[
    (1, "name", Field::Text),
    (2, "signerName", Field::Text),
    (3, "labelSelector", Field::Message(&LABEL_SELECTOR)),
    (4, "path", Field::Text),
    (5, "optional", Field::Bool),
]);
static POD_CERTIFICATE_PROJECTION: Message = Message(&[
    (1, "signerName", Field::Text),
    (2, "keyType", Field::Text),
    (3, "maxExpirationSeconds", Field::OptionalInteger),
    (4, "credentialBundlePath", Field::Text),
    (5, "keyPath", Field::Text),
    (6, "certificateChainPath", Field::Text),
    (7, "userAnnotations", Field::TextMap),
]);
static VOLUME_PROJECTION: Message = Message(&[
    (1, "secret", Field::Message(&SECRET_PROJECTION)),
    (2, "downwardAPI", Field::Message(&DOWNWARD_API_PROJECTION)),
    (3, "configMap", Field::Message(&CONFIG_MAP_PROJECTION)),
    (
        4,
        "serviceAccountToken",
        Field::Message(&SERVICE_ACCOUNT_TOKEN_PROJECTION),
    ),
    (
        5,
        "clusterTrustBundle",
        Field::Message(&CLUSTER_TRUST_BUNDLE_PROJECTION),
    ),
    (6, "podCertificate", Field::Message(&POD_CERTIFICATE_PROJECTION)),
]);
static PROJECTED_VOLUME_SOURCE: Message = Message(&[
    (1, "sources", Field::Messages(&VOLUME_PROJECTION)),
    (2, "defaultMode", Field::OptionalInteger),
]);
static PORTWORX_VOLUME_SOURCE: Message = Message(&[
    (1, "volumeID", Field::Text),
    (2, "fsType", Field::Text),
    (3, "readOnly", Field::Bool),
]);
static SCALE_IO_VOLUME_SOURCE: Message = Message(&[
    (1, "gateway", Field::Text),
    (2, "system", Field::Text),
    (3, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
    (4, "sslEnabled", Field::Bool),
    (5, "protectionDomain", Field::Text),
    (6, "storagePool", Field::Text),
    (7, "storageMode", Field::Text),
    (8, "volumeName", Field::Text),
    (9, "fsType", Field::Text),
    (10, "readOnly", Field::Bool),
]);
static STORAGE_OS_VOLUME_SOURCE: Message = Message(&[
    (1, "volumeName", Field::Text),
    (2, "volumeNamespace", Field::Text),
    (3, "fsType", Field::Text),
    (4, "readOnly", Field::Bool),
    (5, "secretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
]);
static CSI_VOLUME_SOURCE: Message = Message(&[
    (1, "driver", Field::Text),
    (2, "readOnly", Field::Bool),
    (3, "fsType", Field::Text),
    (4, "volumeAttributes", Field::TextMap),
    (5, "nodePublishSecretRef", Field::Message(&LOCAL_OBJECT_REFERENCE)),
]);
static VOLUME_RESOURCE_REQUIREMENTS: Message = Message(&[
    (1, "limits", Field::QuantityMap),
    (2, "requests", Field::QuantityMap),
]);
static TYPED_LOCAL_OBJECT_REFERENCE: Message = Message(&[
    (1, "apiGroup", Field::Text),
    (2, "kind", Field::Text),
    (3, "name", Field::Text),
]);
static TYPED_OBJECT_REFERENCE: Message = Message(&[
    (1, "apiGroup", Field::Text),
    (2, "kind", Field::Text),
    (3, "name", Field::Text),
    (4, "namespace", Field::Text),
]);
static PERSISTENT_VOLUME_CLAIM_SPEC: Message = Message(&[
    (1, "accessModes", Field::Texts),
    (2, "resources", Field::Message(&VOLUME_RESOURCE_REQUIREMENTS)),
    (3, "volumeName", Field::Text),
    (4, "selector", Field::Message(&LABEL_SELECTOR)),
    (5, "storageClassName", Field::Text),
    (6, "volumeMode", Field::Text),
    (7, "dataSource", Field::Message(&TYPED_LOCAL_OBJECT_REFERENCE)),
    (8, "dataSourceRef", Field::Message(&TYPED_OBJECT_REFERENCE)),
    (9, "volumeAttributesClassName", Field::Text),
]);
static PERSISTENT_VOLUME_CLAIM_TEMPLATE: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&PERSISTENT_VOLUME_CLAIM_SPEC)),
]);
static EPHEMERAL_VOLUME_SOURCE: Message = Message(&[(
    1,
    "volumeClaimTemplate",
    Field::Message(&PERSISTENT_VOLUME_CLAIM_TEMPLATE),
)]);
static IMAGE_VOLUME_SOURCE: Message =
    Message(&[(1, "reference", Field::Text), (2, "pullPolicy", Field::Text)]);
static VOLUME_SOURCE: Message = Message(&[
    (1, "hostPath", Field::Message(&HOST_PATH_VOLUME_SOURCE)),
    (2, "emptyDir", Field::Message(&EMPTY_DIR_VOLUME_SOURCE)),
    (
        3,
        "gcePersistentDisk",
        Field::Message(&GCE_PERSISTENT_DISK_VOLUME_SOURCE),
    ),
    (
        4,
        "awsElasticBlockStore",
        Field::Message(&AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE),
    ),
    (5, "gitRepo", Field::Message(&GIT_REPO_VOLUME_SOURCE)),
    (6, "secret", Field::Message(&SECRET_VOLUME_SOURCE)),
    (7, "nfs", Field::Message(&NFS_VOLUME_SOURCE)),
    (8, "iscsi", Field::Message(&ISCSI_VOLUME_SOURCE)),
    (9, "glusterfs", Field::Message(&GLUSTERFS_VOLUME_SOURCE)),
    (
        10,
        "persistentVolumeClaim",
        Field::Message(&PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE),
    ),
    (11, "rbd", Field::Message(&RBD_VOLUME_SOURCE)),
    (12, "flexVolume", Field::Message(&FLEX_VOLUME_SOURCE)),
    (13, "cinder", Field::Message(&CINDER_VOLUME_SOURCE)),
    (14, "cephfs", Field::Message(&CEPH_FS_VOLUME_SOURCE)),
    (15, "flocker", Field::Message(&FLOCKER_VOLUME_SOURCE)),
    (16, "downwardAPI", Field::Message(&DOWNWARD_API_VOLUME_SOURCE)),
    (17, "fc", Field::Message(&FC_VOLUME_SOURCE)),
    (18, "azureFile", Field::Message(&AZURE_FILE_VOLUME_SOURCE)),
    (19, "configMap", Field::Message(&CONFIG_MAP_VOLUME_SOURCE)),
    (
        20,
        "vsphereVolume",
        Field::Message(&VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE),
    ),
    (21, "quobyte", Field::Message(&QUOBYTE_VOLUME_SOURCE)),
    (22, "azureDisk", Field::Message(&AZURE_DISK_VOLUME_SOURCE)),
    (
        23,
        "photonPersistentDisk",
        Field::Message(&PHOTON_PERSISTENT_DISK_VOLUME_SOURCE),
    ),
    (24, "portworxVolume", Field::Message(&PORTWORX_VOLUME_SOURCE)),
    (25, "scaleIO", Field::Message(&SCALE_IO_VOLUME_SOURCE)),
    (26, "projected", Field::Message(&PROJECTED_VOLUME_SOURCE)),
    (27, "storageos", Field::Message(&STORAGE_OS_VOLUME_SOURCE)),
    (28, "csi", Field::Message(&CSI_VOLUME_SOURCE)),
    (29, "ephemeral", Field::Message(&EPHEMERAL_VOLUME_SOURCE)),
    (30, "image", Field::Message(&IMAGE_VOLUME_SOURCE)),
]);
static VOLUME: Message = Message(&[
    (1, "name", Field::Text),
    (2, "volumeSource", Field::Inline(&VOLUME_SOURCE)),
]);
static CONTAINER_PORT: Message = Message(&[
    (1, "name", Field::Text),
    (2, "hostPort", Field::OptionalInteger),
    (3, "containerPort", Field::OptionalInteger),
    (4, "protocol", Field::Text),
    (5, "hostIP", Field::Text),
]);
static CONFIG_MAP_ENV_SOURCE: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "optional", Field::Bool),
]);
static SECRET_ENV_SOURCE: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "optional", Field::Bool),
]);
static ENV_FROM_SOURCE: Message = Message(&[
    (1, "prefix", Field::Text),
    (2, "configMapRef", Field::Message(&CONFIG_MAP_ENV_SOURCE)),
    (3, "secretRef", Field::Message(&SECRET_ENV_SOURCE)),
]);
static CONFIG_MAP_KEY_SELECTOR: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "key", Field::Text),
    (3, "optional", Field::Bool),
]);
static SECRET_KEY_SELECTOR: Message = Message(&[
    (1, "localObjectReference", Field::Inline(&LOCAL_OBJECT_REFERENCE)),
    (2, "key", Field::Text),
    (3, "optional", Field::Bool),
]);
static FILE_KEY_SELECTOR: Message = Message(&[
    (1, "volumeName", Field::Text),
    (2, "path", Field::Text),
    (3, "key", Field::Text),
    (4, "optional", Field::Bool),
]);
static ENV_VAR_SOURCE: Message = Message(&[
    (1, "fieldRef", Field::Message(&OBJECT_FIELD_SELECTOR)),
    (2, "resourceFieldRef", Field::Message(&RESOURCE_FIELD_SELECTOR)),
    (3, "configMapKeyRef", Field::Message(&CONFIG_MAP_KEY_SELECTOR)),
    (4, "secretKeyRef", Field::Message(&SECRET_KEY_SELECTOR)),
    (5, "fileKeyRef", Field::Message(&FILE_KEY_SELECTOR)),
]);
static ENV_VAR: Message = Message(&[
    (1, "name", Field::Text),
    (2, "value", Field::Text),
    (3, "valueFrom", Field::Message(&ENV_VAR_SOURCE)),
]);
static RESOURCE_CLAIM: Message = Message(&[(1, "name", Field::Text), (2, "request", Field::Text)]);
static RESOURCE_REQUIREMENTS: Message = Message(&[
    (1, "limits", Field::QuantityMap),
    (2, "requests", Field::QuantityMap),
    (3, "claims", Field::Messages(&RESOURCE_CLAIM)),
]);
static CONTAINER_RESIZE_POLICY: Message = Message(&[
    (1, "resourceName", Field::Text),
    (2, "restartPolicy", Field::Text),
]);
static CONTAINER_RESTART_RULE_ON_EXIT_CODES: Message =
    Message(&[(1, "operator", Field::Text), (2, "values", Field::Integers)]);
static CONTAINER_RESTART_RULE: Message = Message(&[
    (1, "action", Field::Text),
    (
        2,
        "exitCodes",
        Field::Message(&CONTAINER_RESTART_RULE_ON_EXIT_CODES),
    ),
]);
static VOLUME_MOUNT: Message = Message(&[
    (1, "name", Field::Text),
    (2, "readOnly", Field::Bool),
    (3, "mountPath", Field::Text),
    (4, "subPath", Field::Text),
    (5, "mountPropagation", Field::Text),
    (6, "subPathExpr", Field::Text),
    (7, "recursiveReadOnly", Field::Text),
]);
static VOLUME_DEVICE: Message = Message(&[(1, "name", Field::Text), (2, "devicePath", Field::Text)]);
static EXEC_ACTION: Message = Message(&[(1, "command", Field::Texts)]);
static HTTP_HEADER: Message = Message(&[(1, "name", Field::Text), (2, "value", Field::Text)]);
static HTTP_GET_ACTION: Message = Message(&[
    (1, "path", Field::Text),
    (2, "port", Field::IntOrString),
    (3, "host", Field::Text),
    (4, "scheme", Field::Text),
    (5, "httpHeaders", Field::Messages(&HTTP_HEADER)),
]);
static TCP_SOCKET_ACTION: Message = Message(&[(1, "port", Field::IntOrString), (2, "host", Field::Text)]);
static GRPC_ACTION: Message = Message(&[(1, "port", Field::OptionalInteger), (2, "service", Field::Text)]);
static PROBE_HANDLER: Message = Message(&[
    (1, "exec", Field::Message(&EXEC_ACTION)),
    (2, "httpGet", Field::Message(&HTTP_GET_ACTION)),
    (3, "tcpSocket", Field::Message(&TCP_SOCKET_ACTION)),
    (4, "grpc", Field::Message(&GRPC_ACTION)),
]);
static PROBE: Message = Message(&[
    (1, "handler", Field::Inline(&PROBE_HANDLER)),
    (2, "initialDelaySeconds", Field::OptionalInteger),
    (3, "timeoutSeconds", Field::OptionalInteger),
    (4, "periodSeconds", Field::OptionalInteger),
    (5, "successThreshold", Field::OptionalInteger),
    (6, "failureThreshold", Field::OptionalInteger),
    (7, "terminationGracePeriodSeconds", Field::OptionalInteger),
]);
static SLEEP_ACTION: Message = Message(&[(1, "seconds", Field::OptionalInteger)]);
static LIFECYCLE_HANDLER: Message = Message(&[
    (1, "exec", Field::Message(&EXEC_ACTION)),
    (2, "httpGet", Field::Message(&HTTP_GET_ACTION)),
    (3, "tcpSocket", Field::Message(&TCP_SOCKET_ACTION)),
    (4, "sleep", Field::Message(&SLEEP_ACTION)),
]);
static LIFECYCLE: Message = Message(&[
    (1, "postStart", Field::Message(&LIFECYCLE_HANDLER)),
    (2, "preStop", Field::Message(&LIFECYCLE_HANDLER)),
    (3, "stopSignal", Field::Text),
]);
static CAPABILITIES: Message = Message(&[(1, "add", Field::Texts), (2, "drop", Field::Texts)]);
static SE_LINUX_OPTIONS: Message = Message(&[
    (1, "user", Field::Text),
    (2, "role", Field::Text),
    (3, "type", Field::Text),
    (4, "level", Field::Text),
]);
static WINDOWS_SECURITY_CONTEXT_OPTIONS: Message = Message(&[
    (1, "gmsaCredentialSpecName", Field::Text),
    (2, "gmsaCredentialSpec", Field::Text),
    (3, "runAsUserName", Field::Text),
    (4, "hostProcess", Field::Bool),
]);
static SECCOMP_PROFILE: Message = Message(&[(1, "type", Field::Text), (2, "localhostProfile", Field::Text)]);
static APP_ARMOR_PROFILE: Message =
    Message(&[(1, "type", Field::Text), (2, "localhostProfile", Field::Text)]);
static SECURITY_CONTEXT: Message = Message(&[
    (1, "capabilities", Field::Message(&CAPABILITIES)),
    (2, "privileged", Field::Bool),
    (3, "seLinuxOptions", Field::Message(&SE_LINUX_OPTIONS)),
    (4, "runAsUser", Field::OptionalInteger),
    (5, "runAsNonRoot", Field::Bool),
    (6, "readOnlyRootFilesystem", Field::Bool),
    (7, "allowPrivilegeEscalation", Field::Bool),
    (8, "runAsGroup", Field::OptionalInteger),
    (9, "procMount", Field::Text),
    (
        10,
        "windowsOptions",
        Field::Message(&WINDOWS_SECURITY_CONTEXT_OPTIONS),
    ),
    (11, "seccompProfile", Field::Message(&SECCOMP_PROFILE)),
    (12, "appArmorProfile", Field::Message(&APP_ARMOR_PROFILE)),
]);
static CONTAINER: Message = Message(&[
    (1, "name", Field::Text),
    (2, "image", Field::Text),
    (3, "command", Field::Texts),
    (4, "args", Field::Texts),
    (5, "workingDir", Field::Text),
    (6, "ports", Field::Messages(&CONTAINER_PORT)),
    (7, "env", Field::Messages(&ENV_VAR)),
    (8, "resources", Field::Message(&RESOURCE_REQUIREMENTS)),
    (9, "volumeMounts", Field::Messages(&VOLUME_MOUNT)),
    (10, "livenessProbe", Field::Message(&PROBE)),
    (11, "readinessProbe", Field::Message(&PROBE)),
    (12, "lifecycle", Field::Message(&LIFECYCLE)),
    (13, "terminationMessagePath", Field::Text),
    (14, "imagePullPolicy", Field::Text),
    (15, "securityContext", Field::Message(&SECURITY_CONTEXT)),
    (16, "stdin", Field::Bool),
    (17, "stdinOnce", Field::Bool),
    (18, "tty", Field::Bool),
    (19, "envFrom", Field::Messages(&ENV_FROM_SOURCE)),
    (20, "terminationMessagePolicy", Field::Text),
    (21, "volumeDevices", Field::Messages(&VOLUME_DEVICE)),
    (22, "startupProbe", Field::Message(&PROBE)),
    (23, "resizePolicy", Field::Messages(&CONTAINER_RESIZE_POLICY)),
    (24, "restartPolicy", Field::Text),
    (25, "restartPolicyRules", Field::Messages(&CONTAINER_RESTART_RULE)),
]);
// Its common part has the numbers of a container.
static EPHEMERAL_CONTAINER: Message = Message(&[
    (1, "ephemeralContainerCommon", Field::Inline(&CONTAINER)),
    (2, "targetContainerName", Field::Text),
]);
static SYSCTL: Message = Message(&[(1, "name", Field::Text), (2, "value", Field::Text)]);
static POD_SECURITY_CONTEXT: Message = Message(&[
    (1, "seLinuxOptions", Field::Message(&SE_LINUX_OPTIONS)),
    (2, "runAsUser", Field::OptionalInteger),
    (3, "runAsNonRoot", Field::Bool),
    (4, "supplementalGroups", Field::Integers),
    (5, "fsGroup", Field::OptionalInteger),
    (6, "runAsGroup", Field::OptionalInteger),
    (7, "sysctls", Field::Messages(&SYSCTL)),
    (
        8,
        "windowsOptions",
        Field::Message(&WINDOWS_SECURITY_CONTEXT_OPTIONS),
    ),
    (9, "fsGroupChangePolicy", Field::Text),
    (10, "seccompProfile", Field::Message(&SECCOMP_PROFILE)),
    (11, "appArmorProfile", Field::Message(&APP_ARMOR_PROFILE)),
    (12, "supplementalGroupsPolicy", Field::Text),
    (13, "seLinuxChangePolicy", Field::Text),
]);
static NODE_SELECTOR_REQUIREMENT: Message = Message(&[
    (1, "key", Field::Text),
    (2, "operator", Field::Text),
    (3, "values", Field::Texts),
]);
static NODE_SELECTOR_TERM: Message = Message(&[
    (1, "matchExpressions", Field::Messages(&NODE_SELECTOR_REQUIREMENT)),
    (2, "matchFields", Field::Messages(&NODE_SELECTOR_REQUIREMENT)),
]);
static NODE_SELECTOR: Message = Message(&[(1, "nodeSelectorTerms", Field::Messages(&NODE_SELECTOR_TERM))]);
static PREFERRED_SCHEDULING_TERM: Message = Message(&[
    (1, "weight", Field::OptionalInteger),
    (2, "preference", Field::Message(&NODE_SELECTOR_TERM)),
]);
static NODE_AFFINITY: Message = Message(&[
    (
        1,
        "requiredDuringSchedulingIgnoredDuringExecution",
        Field::Message(&NODE_SELECTOR),
    ),
    (
        2,
        "preferredDuringSchedulingIgnoredDuringExecution",
        Field::Messages(&PREFERRED_SCHEDULING_TERM),
    ),
]);
static POD_AFFINITY_TERM: Message = Message(&[
    (1, "labelSelector", Field::Message(&LABEL_SELECTOR)),
    (2, "namespaces", Field::Texts),
    (3, "topologyKey", Field::Text),
    (4, "namespaceSelector", Field::Message(&LABEL_SELECTOR)),
    (5, "matchLabelKeys", Field::Texts),
    (6, "mismatchLabelKeys", Field::Texts),
]);
static WEIGHTED_POD_AFFINITY_TERM: Message = Message(&[
    (1, "weight", Field::OptionalInteger),
    (2, "podAffinityTerm", Field::Message(&POD_AFFINITY_TERM)),
]);
static POD_AFFINITY: Message = Message(&[
    (
        1,
        "requiredDuringSchedulingIgnoredDuringExecution",
        Field::Messages(&POD_AFFINITY_TERM),
    ),
    (
        2,
        "preferredDuringSchedulingIgnoredDuringExecution",
        Field::Messages(&WEIGHTED_POD_AFFINITY_TERM),
    ),
]);
static POD_ANTI_AFFINITY: Message = Message(&[
    (
        1,
        "requiredDuringSchedulingIgnoredDuringExecution",
        Field::Messages(&POD_AFFINITY_TERM),
    ),
    (
        2,
        "preferredDuringSchedulingIgnoredDuringExecution",
        Field::Messages(&WEIGHTED_POD_AFFINITY_TERM),
    ),
]);
static AFFINITY: Message = Message(&[
    (1, "nodeAffinity", Field::Message(&NODE_AFFINITY)),
    (2, "podAffinity", Field::Message(&POD_AFFINITY)),
    (3, "podAntiAffinity", Field::Message(&POD_ANTI_AFFINITY)),
]);
static TOLERATION: Message = Message(&[
    (1, "key", Field::Text),
    (2, "operator", Field::Text),
    (3, "value", Field::Text),
    (4, "effect", Field::Text),
    (5, "tolerationSeconds", Field::OptionalInteger),
]);
static HOST_ALIAS: Message = Message(&[(1, "ip", Field::Text), (2, "hostnames", Field::Texts)]);
static POD_DNS_CONFIG_OPTION: Message = Message(&[(1, "name", Field::Text), (2, "value", Field::Text)]);
static POD_DNS_CONFIG: Message = Message(&[
    (1, "nameservers", Field::Texts),
    (2, "searches", Field::Texts),
    (3, "options", Field::Messages(&POD_DNS_CONFIG_OPTION)),
]);
static POD_READINESS_GATE: Message = Message(&[(1, "conditionType", Field::Text)]);
static TOPOLOGY_SPREAD_CONSTRAINT: Message = Message(&[
    (1, "maxSkew", Field::OptionalInteger),
    (2, "topologyKey", Field::Text),
    (3, "whenUnsatisfiable", Field::Text),
    (4, "labelSelector", Field::Message(&LABEL_SELECTOR)),
    (5, "minDomains", Field::OptionalInteger),
    (6, "nodeAffinityPolicy", Field::Text),
    (7, "nodeTaintsPolicy", Field::Text),
    (8, "matchLabelKeys", Field::Texts),
]);
static POD_OS: Message = Message(&[(1, "name", Field::Text)]);
static POD_SCHEDULING_GATE: Message = Message(&[(1, "name", Field::Text)]);
static POD_RESOURCE_CLAIM: Message = Message(&[
    (1, "name", Field::Text),
    (3, "resourceClaimName", Field::Text),
    (4, "resourceClaimTemplateName", Field::Text),
]);
static POD_SCHEDULING_GROUP: Message = Message(&[(1, "podGroupName", Field::Text)]);
static POD_SPEC: Message = Message(&[
    (1, "volumes", Field::Messages(&VOLUME)),
    (2, "containers", Field::Messages(&CONTAINER)),
    (3, "restartPolicy", Field::Text),
    (4, "terminationGracePeriodSeconds", Field::OptionalInteger),
    (5, "activeDeadlineSeconds", Field::OptionalInteger),
    (6, "dnsPolicy", Field::Text),
    (7, "nodeSelector", Field::TextMap),
    (8, "serviceAccountName", Field::Text),
    (9, "serviceAccount", Field::Text),
    (10, "nodeName", Field::Text),
    (11, "hostNetwork", Field::Bool),
    (12, "hostPID", Field::Bool),
    (13, "hostIPC", Field::Bool),
    (14, "securityContext", Field::Message(&POD_SECURITY_CONTEXT)),
    (15, "imagePullSecrets", Field::Messages(&LOCAL_OBJECT_REFERENCE)),
    (16, "hostname", Field::Text),
    (17, "subdomain", Field::Text),
    (18, "affinity", Field::Message(&AFFINITY)),
    (19, "schedulerName", Field::Text),
    (20, "initContainers", Field::Messages(&CONTAINER)),
    (21, "automountServiceAccountToken", Field::Bool),
    (22, "tolerations", Field::Messages(&TOLERATION)),
    (23, "hostAliases", Field::Messages(&HOST_ALIAS)),
    (24, "priorityClassName", Field::Text),
    (25, "priority", Field::OptionalInteger),
    (26, "dnsConfig", Field::Message(&POD_DNS_CONFIG)),
    (27, "shareProcessNamespace", Field::Bool),
    (28, "readinessGates", Field::Messages(&POD_READINESS_GATE)),
    (29, "runtimeClassName", Field::Text),
    (30, "enableServiceLinks", Field::Bool),
    (31, "preemptionPolicy", Field::Text),
    (32, "overhead", Field::QuantityMap),
    (
        33,
        "topologySpreadConstraints",
        Field::Messages(&TOPOLOGY_SPREAD_CONSTRAINT),
    ),
    (34, "ephemeralContainers", Field::Messages(&EPHEMERAL_CONTAINER)),
    (35, "setHostnameAsFQDN", Field::Bool),
    (36, "os", Field::Message(&POD_OS)),
    (37, "hostUsers", Field::Bool),
    (38, "schedulingGates", Field::Messages(&POD_SCHEDULING_GATE)),
    (39, "resourceClaims", Field::Messages(&POD_RESOURCE_CLAIM)),
    (40, "resources", Field::Message(&RESOURCE_REQUIREMENTS)),
    (41, "hostnameOverride", Field::Text),
    (43, "schedulingGroup", Field::Message(&POD_SCHEDULING_GROUP)),
]);
pub(super) static POD: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&POD_SPEC)),
]);
