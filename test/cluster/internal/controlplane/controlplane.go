// SPDX-License-Identifier: Apache-2.0

// Package controlplane decides what runs on the control plane's machine, and with which flags.
package controlplane

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/pki"
)

// Name is the host name of the machine.
const Name = "control-plane"

// Server is the URL of the API server for the cluster's machines.
const Server = "https://" + network.ControlPlaneIP + ":6443"

const (
	local   = "https://127.0.0.1:6443"
	ready   = local + "/readyz"
	etcdURL = "http://127.0.0.1:2379"
	kube    = machine.Bin + "/" + components.Kubernetes + "/"
)

// Options are the user's options.
type Options struct {
	FeatureGates  map[string]bool
	RuntimeConfig map[string]string
	Audit         []string // users whose requests are logged
	// SchedulerConfig is the result of CompleteSchedulerConfig; empty: none.
	SchedulerConfig  string
	SchedulerVModule string // klog's --vmodule of the scheduler, FILE=N; empty: none
}

// Spec returns the machine. dir is its own folder on the host's disk.
func Spec(dir string, programs components.Dirs, o Options) machine.Spec {
	return machine.Spec{
		Name: Name,
		Dir:  dir,
		Components: map[string]string{
			components.Etcd:       programs[components.Etcd],
			components.Kubernetes: programs[components.Kubernetes],
		},
		Fresh:   []string{"/var", "/tmp"},
		Files:   files(auditFiles(o), schedulerFiles(o)),
		Forward: "127.0.0.1:6443",
		Steps: []machine.Step{
			{Name: "etcd", Command: etcd()},
			{Name: "kube-apiserver", Command: apiServer(o), After: []string{etcdURL + "/health"}},
			{Name: "kube-controller-manager", Command: controllerManager(o), After: []string{ready}},
			{Name: "kube-scheduler", Command: scheduler(o), After: []string{ready}, Optional: true},
		},
	}
}

func etcd() []string {
	const peer = "http://127.0.0.1:2380"
	return []string{
		machine.Bin + "/" + components.Etcd + "/etcd",
		"--name=etcd",
		"--data-dir=" + machine.Home + "/etcd",
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--unsafe-no-fsync", // a test cluster's data need not survive a power cut
		"--log-level=warn",
	}
}

func apiServer(o Options) []string {
	command := []string{
		kube + "kube-apiserver",
		"--etcd-servers=" + etcdURL,
		"--secure-port=6443",
		"--bind-address=0.0.0.0",
		"--advertise-address=" + network.ControlPlaneIP,
		"--tls-cert-file=" + machine.PKI + "/apiserver.crt",
		"--tls-private-key-file=" + machine.PKI + "/apiserver.key",
		"--client-ca-file=" + machine.CA,
		"--kubelet-client-certificate=" + machine.PKI + "/apiserver-kubelet.crt",
		"--kubelet-client-key=" + machine.PKI + "/apiserver-kubelet.key",
		"--kubelet-certificate-authority=" + machine.CA,
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-key-file=" + machine.PKI + "/service-account.pub",
		"--service-account-signing-key-file=" + machine.PKI + "/service-account.key",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=" + network.ServiceCIDR,
		"--allow-privileged=true",
		// There is no kube-proxy here, so the API server connects to the pods of services (webhooks, aggregated APIs)
		// directly.
		"--enable-aggregator-routing=true",
		"--proxy-client-cert-file=" + machine.PKI + "/front-proxy.crt",
		"--proxy-client-key-file=" + machine.PKI + "/front-proxy.key",
		"--requestheader-client-ca-file=" + machine.PKI + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
	command = append(command, gates(o)...)
	command = append(command, list("--runtime-config", o.RuntimeConfig)...)
	return append(command, auditFlags(o)...)
}

func controllerManager(o Options) []string {
	config := machine.PKI + "/controller-manager.conf"
	command := []string{
		kube + "kube-controller-manager",
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--service-account-private-key-file=" + machine.PKI + "/service-account.key",
		"--root-ca-file=" + machine.CA,
		"--cluster-signing-cert-file=" + machine.CA,
		"--cluster-signing-key-file=" + machine.PKI + "/ca.key",
		"--use-service-account-credentials=true",
		// With the defaults, pods of DaemonSets appear seconds late.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--node-monitor-grace-period=20s", // tests of a node's crash wait for it
	}
	return append(command, gates(o)...)
}

// files merges the sets; nil if there are no files.
func files(sets ...map[string]string) map[string]string {
	var all map[string]string
	for _, set := range sets {
		for path, text := range set {
			if all == nil {
				all = map[string]string{}
			}
			all[path] = text
		}
	}
	return all
}

func gates(o Options) []string {
	values := map[string]string{}
	for name, on := range o.FeatureGates {
		values[name] = fmt.Sprint(on)
	}
	return list("--feature-gates", values)
}

func list(flag string, values map[string]string) []string {
	if len(values) == 0 {
		return nil
	}
	var items []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		items = append(items, name+"="+values[name])
	}
	return []string{flag + "=" + strings.Join(items, ",")}
}

// WriteCredentials writes the control plane's certificates and kubeconfigs into the machine's folder.
func WriteCredentials(dir string, ca *pki.Authority) error {
	front, err := pki.NewAuthority("front-proxy-ca")
	if err != nil {
		return err
	}
	w := pki.Writer{Dir: filepath.Join(dir, "pki"), CA: ca, Server: local}
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return fmt.Errorf("make folder for certificates: %w", err)
	}
	w.Authority("ca", ca)
	w.Authority("front-proxy-ca", front)
	w.SigningKey("service-account")
	w.Pair("apiserver", ca, pki.Subject{
		CommonName: "kube-apiserver",
		IPs: []net.IP{
			net.ParseIP(network.ControlPlaneIP), net.ParseIP(network.APIServiceIP), net.ParseIP("127.0.0.1"),
		},
		DNSNames: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		},
	})
	w.Pair("apiserver-kubelet", ca, pki.Subject{CommonName: "apiserver-kubelet",
		Organizations: []string{"system:masters"}})
	w.Pair("front-proxy", front, pki.Subject{CommonName: "front-proxy"})
	w.Kubeconfig("controller-manager", pki.Subject{CommonName: "system:kube-controller-manager"})
	w.Kubeconfig("scheduler", pki.Subject{CommonName: "system:kube-scheduler"})
	return w.Err
}
