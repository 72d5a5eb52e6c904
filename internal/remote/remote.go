// SPDX-License-Identifier: Apache-2.0

// Package remote is what the parts for GPUs over the network share: names, engines, certificates, and what the
// controller tells servers and nodes.
//
// A server pod holds a claim for a GPU of its node and runs an engine's server. Its GPU is published as a device of
// another driver. A claim for that device is a session: the controller admits it at the server, and the plugin of the
// client's node connects the containers with it.
package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Names in the cluster.
const (
	// Pool is the pool of all remote devices.
	Pool = "remote"
	// ServerLabel is the label of a server pod. Its value is the name of the engine.
	ServerLabel = "gpu.nvidia.com/remote-server"
	// ClientLabel is the label of nodes whose pods can use remote devices, with the value "true".
	ClientLabel = "gpu.nvidia.com/remote-client"
	// LinkAnnotation of a server pod is the speed of its network in Gbit/s.
	LinkAnnotation = "gpu.nvidia.com/link-gbps"

	// SessionReady is the binding condition of a remote device: its server has admitted the claim.
	SessionReady = "SessionReady"
	// ServerLost is the binding failure condition of a remote device.
	ServerLost = "ServerLost"

	// ServerSecret is the Secret of the release's namespace that every server pod mounts: tls.crt, tls.key, and ca.crt.
	ServerSecret = "gpu-remote-server"
	// ServerPort is the port of a server pod for nodes and for the controller.
	ServerPort = 14834
)

// Driver returns the name of the driver of remote devices.
func Driver(local string) string { return "remote." + local }

// Local returns the name of the driver of the local devices behind those of a driver of remote devices. ok is false if
// it is none.
func Local(driver string) (local string, ok bool) { return strings.CutPrefix(driver, Driver("")) }

// Signer returns the signer of the certificates of sessions, in a CertificateSigningRequest. It has the name of the
// driver, so that two drivers in a cluster do not answer each other's requests.
func Signer(local string) string { return local + "/remote-session" }

// ServerLostTaint returns the key of the taint of a device whose server is lost.
func ServerLostTaint(local string) string { return Driver(local) + "/server-lost" }

// Results are the devices of the driver that the claim has, also those with admin access.
func Results(claim *resourceapi.ResourceClaim, driver string) (all []resourceapi.DeviceRequestAllocationResult) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver {
			all = append(all, r)
		}
	}
	return all
}

// Session is what the controller tells the node of a claim, in data of the device in the claim's status. Nothing in it
// is secret.
type Session struct {
	// Engine is the name of the engine.
	Engine string `json:"engine"`
	// Address of the server pod, with port.
	Address string `json:"address"`
	// Server is the UID of the server pod.
	Server types.UID `json:"server"`
}

// Encode returns the session as data of a device in a claim's status.
func (s Session) Encode() (*runtime.RawExtension, error) {
	text, err := json.Marshal(s)
	return &runtime.RawExtension{Raw: text}, err
}

// ErrNotReady means that the controller has not admitted the claim yet.
var ErrNotReady = errors.New("the controller has not admitted the claim at its server yet")

// SessionOf returns the session of the device in the claim's status. The error is ErrNotReady if there is none.
func SessionOf(claim *resourceapi.ResourceClaim, driver, device string) (Session, error) {
	for _, d := range claim.Status.Devices {
		if d.Driver != driver || d.Pool != Pool || d.Device != device || d.Data == nil {
			continue
		}
		var s Session
		if err := json.Unmarshal(d.Data.Raw, &s); err != nil {
			return Session{}, fmt.Errorf("session of device %s: %w", device, err)
		}
		if s.Engine == "" || s.Address == "" || s.Server == "" {
			return Session{}, fmt.Errorf("session of device %s: %s: engine, address and server are required", device,
				d.Data.Raw)
		}
		return s, nil
	}
	return Session{}, ErrNotReady
}

// SessionsPath is the path at which a server takes its sessions, on ServerPort, from a client with the certificate of
// the controller. PUT replaces them: the body is a SessionList. Connections of all others end. The answer is the same
// SessionList, or 503 until the engine accepts connections.
const SessionsPath = "/sessions"

// SessionList are the sessions that a server accepts.
type SessionList struct {
	// Claims are the UIDs of the admitted claims.
	Claims []types.UID `json:"claims"`
}
