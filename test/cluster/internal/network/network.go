// SPDX-License-Identifier: Apache-2.0

// Package network connects the namespaces of a cluster: the control plane has
// a bridge, each node one cable to it. Nothing is made in the machine's own
// namespace, so two clusters may use the same addresses, and all of it goes
// when the namespaces go.
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
	// MaxNodes is how many nodes the address plan has room for.
	MaxNodes = 200
)

const (
	bridge   = "br0"
	nodeLink = "eth0"
)

// NodeIP returns the address of the i-th node, counted from one.
func NodeIP(i int) string { return fmt.Sprintf("10.77.0.%d", 10+i) }

// NodePodCIDR returns the addresses of the i-th node's pods.
func NodePodCIDR(i int) string { return fmt.Sprintf("10.78.%d.0/24", i) }

// bridgeAddress is the bridge's own, locally administered. Without one it would have the lowest of its cables' addresses, which
// changes when another cable is plugged in; nodes that had looked it up before would lose the control plane for half a minute.
var bridgeAddress = net.HardwareAddr{0x02, 0, 0, 0, 0, 1}

// MakeBridge sets up the namespace of the control plane, which the process
// lives in.
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

// Connect lays a cable between the control plane's bridge and the i-th of n
// nodes, and sets the routes to its pods and from it to the others'. A node
// that comes back after a crash is connected in the same way.
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

// space is a network namespace to work in from outside.
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

// Close ends the work in the namespace; the namespace stays.
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
	// The kernel takes its time to remove the cable of a node that crashed.
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
	// Nothing lies behind the default route, but without one the kernel
	// refuses service addresses before kube-proxy's rules see them.
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
