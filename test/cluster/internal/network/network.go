// SPDX-License-Identifier: Apache-2.0

// Package network connects the namespaces of a cluster: the control plane has a bridge, and each node a veth pair to
// it. Nothing is created in the host's namespace, so clusters can use the same addresses, and all links end with the
// namespaces.
package network

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Addresses inside a cluster.
const (
	ControlPlaneIP = "10.77.0.1"
	ServiceCIDR    = "10.96.0.0/16"
	APIServiceIP   = "10.96.0.1"
	PodCIDR        = "10.78.0.0/16"
	// MaxNodes is the capacity of the address plan.
	MaxNodes = 200
)

const (
	bridge   = "br0"
	nodeLink = "eth0"
)

// NodeIP returns the address of the i-th node, counted from one.
func NodeIP(i int) string { return fmt.Sprintf("10.77.0.%d", 10+i) }

// NodePodCIDR returns the pod CIDR of the i-th node.
func NodePodCIDR(i int) string { return fmt.Sprintf("10.78.%d.0/24", i) }

// bridgeAddress is the bridge's own, locally administered address. Without it the bridge takes the lowest address of
// its ports, which changes with a new port; nodes with the old one in their cache would lose the control plane for half
// a minute.
var bridgeAddress = net.HardwareAddr{0x02, 0, 0, 0, 0, 1}

// MakeBridge sets up the control plane's namespace, which is that of the process.
func MakeBridge(pid int) error {
	h, err := open(pid)
	if err != nil {
		return err
	}
	defer h.Close()
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge, HardwareAddr: bridgeAddress}}
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	if err := h.raise("lo"); err != nil {
		return err
	}
	return h.assign(bridge, ControlPlaneIP+"/24")
}

// Connect connects the i-th of n nodes with the control plane's bridge, and sets the routes to its pods and to those of
// the others. It also reconnects a node after a crash.
func Connect(controlPlane, node, i, n int) error {
	hub, err := open(controlPlane)
	if err != nil {
		return err
	}
	defer hub.Close()
	end, err := open(node)
	if err != nil {
		return err
	}
	defer end.Close()
	if err := hub.plug(end, fmt.Sprintf("node%d", i)); err != nil {
		return err
	}
	if err := hub.route(NodePodCIDR(i), NodeIP(i)); err != nil {
		return err
	}
	return end.configure(i, n)
}

// space is a network namespace that is configured from outside.
type space struct {
	*netlink.Handle
	ns netns.NsHandle
}

func open(pid int) (*space, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("open network namespace of process %d: %w", pid, err)
	}
	h, err := netlink.NewHandleAt(ns, syscall.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open network namespace of process %d: %w", pid, err)
	}
	return &space{Handle: h, ns: ns}, nil
}

// Close closes the handles; the namespace stays.
func (s *space) Close() {
	s.Handle.Close()
	_ = s.ns.Close()
}

func (s *space) plug(peer *space, name string) error {
	cable := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name},
		PeerName:      nodeLink,
		PeerNamespace: netlink.NsFd(peer.ns),
	}
	// The kernel removes the link of a crashed node with a delay.
	if old, err := s.LinkByName(name); err == nil {
		_ = s.LinkDel(old)
	}
	if err := s.LinkAdd(cable); err != nil {
		return fmt.Errorf("add link %s: %w", name, err)
	}
	link, err := s.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	br, err := s.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	if err := s.LinkSetMasterByIndex(link, br.Attrs().Index); err != nil {
		return fmt.Errorf("put link %s on the bridge: %w", name, err)
	}
	return s.raise(name)
}

func (s *space) configure(i, n int) error {
	if err := s.raise("lo"); err != nil {
		return err
	}
	if err := s.assign(nodeLink, NodeIP(i)+"/24"); err != nil {
		return err
	}
	for j := 1; j <= n; j++ {
		if j == i {
			continue
		}
		if err := s.route(NodePodCIDR(j), NodeIP(j)); err != nil {
			return err
		}
	}
	// Nothing is behind the default route. Without it the kernel rejects service addresses before kube-proxy's rules
	// apply.
	return s.route("0.0.0.0/0", ControlPlaneIP)
}

func (s *space) assign(name, address string) error {
	link, err := s.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("parse address %s: %w", address, err)
	}
	if err := s.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("give %s to %s: %w", address, name, err)
	}
	return s.raise(name)
}

func (s *space) raise(name string) error {
	link, err := s.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := s.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

func (s *space) route(to, via string) error {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return fmt.Errorf("parse route: %w", err)
	}
	gateway := net.ParseIP(via)
	if gateway == nil {
		return errors.New("parse route: bad gateway " + via)
	}
	if err := s.RouteReplace(&netlink.Route{Dst: dst, Gw: gateway}); err != nil {
		return fmt.Errorf("add route to %s by %s: %w", to, via, err)
	}
	return nil
}
