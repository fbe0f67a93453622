package main

import (
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pyTorchJobKind is the kind of Kubeflow's training operator, version 1. The operator's own module
// would bring in more than a hundred others, so the fields of the job itself are written down here.
var pyTorchJobKind = schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"}

type pyTorchJob struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		RunPolicy struct {
			CleanPodPolicy          string `json:"cleanPodPolicy,omitempty"`
			TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
			ActiveDeadlineSeconds   *int64 `json:"activeDeadlineSeconds,omitempty"`
			BackoffLimit            *int32 `json:"backoffLimit,omitempty"`
			Suspend                 *bool  `json:"suspend,omitempty"`
		} `json:"runPolicy"`
		NprocPerNode        *string            `json:"nprocPerNode,omitempty"`
		PyTorchReplicaSpecs map[string]replica `json:"pytorchReplicaSpecs"`
	} `json:"spec"`
}

type replica struct {
	Replicas      *int32               `json:"replicas,omitempty"`
	Template      core.PodTemplateSpec `json:"template"`
	RestartPolicy string               `json:"restartPolicy,omitempty"`
}
