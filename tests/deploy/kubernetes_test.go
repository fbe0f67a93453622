package deploy

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// object is what this test reads of a Deployment and of a Service.
type object struct {
	Kind string
	Spec struct {
		Selector json.RawMessage
		Ports    []struct {
			Port       int
			TargetPort string
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				TerminationGracePeriodSeconds float64
				SecurityContext               struct {
					RunAsNonRoot bool
					RunAsUser    int
				}
				Containers []container
				Volumes    []struct {
					Name                  string
					PersistentVolumeClaim *struct{}
					EmptyDir              *struct{}
					Secret                *struct{}
				}
			}
		}
	}
}

type container struct {
	Args  []string
	Ports []struct {
		Name          string
		ContainerPort int
	}
	Env []struct{ Name, Value string }

	StartupProbe, LivenessProbe, ReadinessProbe *probe

	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds float64 } }
	}
	SecurityContext struct{ ReadOnlyRootFilesystem bool }
	VolumeMounts    []struct {
		Name, MountPath string
		ReadOnly        bool
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string }
}

// decoded returns the objects of a YAML file in JSON. Kubernetes' own types have decoded them, and
// have refused unknown fields.
func decoded(t *testing.T, file string) []byte {
	t.Helper()
	download := exec.Command("go", "mod", "download")
	download.Dir = filepath.Join(root(t), "tests/kubernetes")
	if out, err := download.CombinedOutput(); err != nil {
		t.Skipf("the modules of Kubernetes cannot be downloaded, so %s is not checked: %v\n%s", file, err, out)
	}
	cmd := exec.Command("go", "run", ".", filepath.Join(root(t), file))
	cmd.Dir, cmd.Stderr = download.Dir, os.Stderr
	return must.Get(cmd.Output())(t)
}

// manifests returns the objects of kubernetes.yaml.
func manifests(t *testing.T) (deployment, service object) {
	t.Helper()
	text := decoded(t, "examples/serve/deploy/kubernetes.yaml")
	var objects []object
	must.Do(t, json.Unmarshal(text, &objects))
	if len(objects) != 2 || objects[0].Kind != "Deployment" || objects[1].Kind != "Service" || len(objects[0].Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("kubernetes.yaml has %d objects: %s", len(objects), text)
	}
	return objects[0], objects[1]
}

// The server runs with the arguments, the folders and the read-only root of the manifests, and
// answers the probes.
func testKubernetes(t *testing.T, bundle, models string) {
	deployment, service := manifests(t)
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if grace, want := pod.TerminationGracePeriodSeconds, c.Lifecycle.PreStop.Sleep.Seconds+seconds(t, flagOf(t, c.Args, "drain")); grace <= want {
		t.Errorf("the pod is killed after %v s, and preStop and -drain take up to %v s", grace, want)
	}
	if !pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.RunAsUser == 0 || !c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the pod may run as root, or may write into its image")
	}
	if user := keys(t, "Dockerfile", " ")["USER"][0]; !strings.HasPrefix(user, strconv.Itoa(pod.SecurityContext.RunAsUser)+":") {
		t.Errorf("the image's user is %s, the pod's %d", user, pod.SecurityContext.RunAsUser)
	}
	var selector map[string]string
	if err := json.Unmarshal(service.Spec.Selector, &selector); err != nil || len(selector) == 0 {
		t.Errorf("the Service selects %s, %v", service.Spec.Selector, err)
	}
	for label, value := range selector {
		if deployment.Spec.Template.Metadata.Labels[label] != value {
			t.Errorf("the Service selects %s=%s, and the pod has %v", label, value, deployment.Spec.Template.Metadata.Labels)
		}
	}
	if len(c.Ports) != 1 || ":"+strconv.Itoa(c.Ports[0].ContainerPort) != flagOf(t, c.Args, "listen") || service.Spec.Ports[0].TargetPort != c.Ports[0].Name {
		t.Errorf("the ports are %v, those of the Service %v, and the server listens on %s", c.Ports, service.Spec.Ports, flagOf(t, c.Args, "listen"))
	}

	const token = "0123456789abcdef0123456789"
	secret := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(secret, "token"), []byte(token), 0o600))
	cache := t.TempDir()
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		from := map[string]string{"models": models, "token": secret, "cache": cache}[m.Name]
		if from == "" || m.ReadOnly == (m.Name == "cache") {
			t.Errorf("volume %s at %s, read-only %v", m.Name, m.MountPath, m.ReadOnly)
			continue
		}
		mounts[m.MountPath] = from
		i := slices.IndexFunc(pod.Volumes, func(v struct {
			Name                  string
			PersistentVolumeClaim *struct{}
			EmptyDir              *struct{}
			Secret                *struct{}
		}) bool {
			return v.Name == m.Name && (v.PersistentVolumeClaim != nil || v.EmptyDir != nil || v.Secret != nil)
		})
		if i < 0 {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
	if i := slices.IndexFunc(c.Env, func(e struct{ Name, Value string }) bool { return e.Name == "STREAMTORCH_CACHE" }); i < 0 || mounts[c.Env[i].Value] != cache {
		t.Errorf("STREAMTORCH_CACHE is not the folder of a volume: %v", c.Env)
	}

	s := start(t, inEmptyRoot(t, bundle, mounts, "/serve", forTest(c.Args)...))
	for name, p := range map[string]*probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if p == nil || p.HTTPGet.Port != c.Ports[0].Name {
			t.Errorf("the %s probe asks no port of the container: %+v", name, p)
			continue
		}
		if status, text := s.ask(t, p.HTTPGet.Path, "", nil); status != http.StatusOK {
			t.Errorf("the %s probe %s gets status %d: %s", name, p.HTTPGet.Path, status, text)
		}
	}
	if status, _ := s.ask(t, "/v2/models/cifar10", "", nil); status != http.StatusUnauthorized {
		t.Errorf("a request without the token: status %d", status)
	}
	s.classifies(t, token)
	s.stop(t)
}
