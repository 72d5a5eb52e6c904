// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
)

func links() ([]string, error) {
	list, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var lines []string
	for _, link := range list {
		a := link.Attrs()
		lines = append(lines, fmt.Sprintf("link %s type=%s mtu=%d flags=%s", a.Name, link.Type(), a.MTU, a.Flags))
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", a.Name, err)
		}
		for _, address := range addresses {
			lines = append(lines, fmt.Sprintf("link %s address=%s", a.Name, address.IPNet))
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list routes of %s: %w", a.Name, err)
		}
		for _, r := range routes {
			lines = append(lines, fmt.Sprintf("link %s route=%s via=%s", a.Name, r.Dst, r.Gw))
		}
	}
	return lines, nil
}

// controlGroups lists the groups of every hierarchy, except below this process's uppermost group: the owner of that
// group changes its children at any time. A cluster creates its groups at the top.
func controlGroups() ([]string, error) {
	layout, err := cgroups.Detect()
	if err != nil {
		return nil, err
	}
	own, err := ownGroups()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, h := range layout {
		err := filepath.WalkDir(h.Root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // a group that went while we looked
			}
			rel, _ := filepath.Rel(h.Root, path)
			if slices.Contains(own, rel) {
				return fs.SkipDir
			}
			lines = append(lines, "cgroup "+path)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// ownGroups returns this process's uppermost group below the root in each hierarchy.
func ownGroups() ([]string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var groups []string
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if top, _, _ := strings.Cut(strings.TrimPrefix(parts[2], "/"), "/"); top != "" {
			groups = append(groups, top)
		}
	}
	return groups, nil
}

// kinds are the namespaces of a cluster's machine.
var kinds = []string{"net", "mnt", "pid", "uts", "ipc"}

// namespaces lists every namespace with a process, by its oldest process. Namespaces without a process are held by
// mounts, which are listed separately.
func namespaces() ([]string, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var lines []string
	for _, p := range table {
		for _, kind := range kinds {
			id, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind))
			if err != nil || seen[id] {
				continue
			}
			seen[id] = true
			lines = append(lines, fmt.Sprintf("namespace %s%s of %q", p.tag(), id, p.command))
		}
	}
	return lines, nil
}

// processes lists those that may belong to a cluster: the machines themselves, and everything outside this process's
// PID namespace.
func processes() ([]string, error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, p := range table {
		if p.space != own || p.cluster != "" {
			lines = append(lines, fmt.Sprintf("process %s%d %s", p.tag(), p.pid, p.command))
		}
	}
	return lines, nil
}
