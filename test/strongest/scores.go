// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// scored matches a line of kube-scheduler --vmodule=schedule_one=10: a plugin's weighted score of a node for a pod.
var scored = regexp.MustCompile(
	`"Plugin scored node for pod" pod="([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)`)

// explain finds the scores that preferred the node of each miss to the best node with a stronger GPU.
func explain(ctx context.Context, command []string, all []placement) error {
	misses := map[string]*placement{}
	for i := range all {
		if !all[i].hit() {
			misses[all[i].pod] = &all[i]
		}
	}
	if len(misses) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	log, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("read the scheduler's log: %w", err)
	}
	scores := map[string]map[string]map[string]int{} // pod → node → plugin
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		found := scored.FindStringSubmatch(lines.Text())
		if found == nil || misses[found[1]] == nil {
			continue
		}
		pod, plugin, node := found[1], found[2], found[3]
		if scores[pod] == nil {
			scores[pod] = map[string]map[string]int{}
		}
		if scores[pod][node] == nil {
			scores[pod][node] = map[string]int{}
		}
		scores[pod][node][plugin], _ = strconv.Atoi(found[4])
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("read the scheduler's log: %w", err)
	}
	for pod, miss := range misses {
		miss.reason = reason(*miss, scores[pod])
	}
	return nil
}

// reason names the plugins that made the difference, the largest first.
func reason(miss placement, scores map[string]map[string]int) string {
	best, most := "", -1
	for _, node := range miss.bestOn {
		if total := sum(scores[node]); scores[node] != nil && total > most {
			best, most = node, total
		}
	}
	chosen := scores[miss.node]
	if best == "" || chosen == nil {
		return "not scored: the node was not looked at"
	}
	if chosen["DynamicResources"] >= scores[best]["DynamicResources"] {
		return "of the same rank"
	}
	plugins := slices.DeleteFunc(slices.Collect(maps.Keys(chosen)),
		func(plugin string) bool { return chosen[plugin] <= scores[best][plugin] })
	slices.SortFunc(plugins, func(a, b string) int {
		if by := (chosen[b] - scores[best][b]) - (chosen[a] - scores[best][a]); by != 0 {
			return by
		}
		return strings.Compare(a, b)
	})
	var why []string
	for _, plugin := range plugins {
		why = append(why, fmt.Sprintf("%s %+d", plugin, chosen[plugin]-scores[best][plugin]))
	}
	return fmt.Sprintf("%s against DynamicResources %+d", strings.Join(why, ", "),
		scores[best]["DynamicResources"]-chosen["DynamicResources"])
}

func sum(scores map[string]int) (total int) {
	for _, n := range scores {
		total += n
	}
	return total
}
