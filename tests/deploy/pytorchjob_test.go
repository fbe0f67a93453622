package deploy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// The job has the fields of Kubeflow's operator, and its pods those of Kubernetes. Both kinds of
// pods are equal, run as no root, write where a volume is, and leave the variables of the ranks to
// the operator.
func TestPyTorchJob(t *testing.T) {
	text := decoded(t, "examples/train/deploy/pytorchjob.yaml")
	type pod struct {
		Spec struct {
			SecurityContext struct{ RunAsNonRoot bool }
			Containers      []struct {
				Name  string
				Args  []string
				Ports []struct {
					Name          string
					ContainerPort int
				}
				Env []struct {
					Name      string
					ValueFrom struct{ FieldRef struct{ FieldPath string } }
				}
				Resources       struct{ Limits map[string]string }
				SecurityContext struct{ ReadOnlyRootFilesystem bool }
				VolumeMounts    []struct {
					Name, MountPath string
					ReadOnly        bool
				}
			}
		}
	}
	var jobs []struct {
		Kind string
		Spec struct {
			PyTorchReplicaSpecs map[string]struct {
				Replicas      int
				RestartPolicy string
				Template      pod
			}
		}
	}
	if err := json.Unmarshal(text, &jobs); err != nil || len(jobs) != 1 || jobs[0].Kind != "PyTorchJob" {
		t.Fatalf("%v: %s", err, text)
	}
	replicas := jobs[0].Spec.PyTorchReplicaSpecs
	master, worker := replicas["Master"], replicas["Worker"]
	if len(replicas) != 2 || master.Replicas != 1 || worker.Replicas < 1 || master.RestartPolicy != "OnFailure" || worker.RestartPolicy != "OnFailure" {
		t.Errorf("the replicas are %+v", replicas)
	}
	if !reflect.DeepEqual(master.Template, worker.Template) {
		t.Error("the pods of Master and Worker differ")
	}
	spec := master.Template.Spec
	if len(spec.Containers) != 1 || spec.Containers[0].Name != "pytorch" {
		t.Fatalf("the operator needs a container with the name pytorch: %+v", spec.Containers)
	}
	c := spec.Containers[0]
	if !spec.SecurityContext.RunAsNonRoot || !c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the pod may run as root, or may write into its image")
	}
	if len(c.Ports) != 1 || c.Ports[0].Name != "pytorchjob-port" || c.Ports[0].ContainerPort != 23456 || c.Resources.Limits["nvidia.com/gpu"] != "1" {
		t.Errorf("ports %v, limits %v", c.Ports, c.Resources.Limits)
	}
	named := false
	for _, e := range c.Env {
		if e.Name == "RANK" || e.Name == "WORLD_SIZE" || e.Name == "LOCAL_RANK" || strings.HasPrefix(e.Name, "MASTER_") {
			t.Errorf("the manifest sets %s, which is the operator's", e.Name)
		}
		named = named || e.Name == "TRAIN_RUN_ID" && strings.Contains(e.ValueFrom.FieldRef.FieldPath, "job-name")
	}
	if !named {
		t.Error("TRAIN_RUN_ID is not the name of the job, so a restarted job begins anew")
	}
	for _, flag := range []struct {
		name     string
		readOnly bool
	}{{"data", true}, {"out", false}} {
		found := false
		for _, m := range c.VolumeMounts {
			found = found || strings.HasPrefix(flagOf(t, c.Args, flag.name), m.MountPath+"/") && m.ReadOnly == flag.readOnly
		}
		if !found {
			t.Errorf("-%s=%s is in no volume that fits: %v", flag.name, flagOf(t, c.Args, flag.name), c.VolumeMounts)
		}
	}
}
