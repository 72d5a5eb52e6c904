// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// explain prints the tails of the logs of a failed start, before they are removed.
func (s *Starter) explain() {
	const lines = 6
	for _, m := range s.machines {
		dir := s.Place.machine(m.Name)
		for _, name := range machine.Logs(dir) {
			text := tail(machine.LogPath(dir, name), lines)
			if text != "" {
				fmt.Fprintf(s.Out, "--- %s/%s\n%s\n", m.Name, name, text)
			}
		}
	}
}

func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
