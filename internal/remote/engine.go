// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
)

// Engine is a program that carries the calls of CUDA and NVML to another machine. Another engine is another file like
// lupine.go, and a line in engines.
type Engine interface {
	// Env returns the variables of a container: its client connects to address, and shows the token.
	Env(address, token string) []string
	// Token reads the token from the first bytes of a connection. The result gives these bytes again. A client without
	// a token is an error.
	Token(conn net.Conn) (token string, replay net.Conn, err error)
	// Port is the port of the engine's server, on the loopback device of its network namespace.
	Port() int
}

var engines = map[string]Engine{
	"lupine": lupine{},
}

// EngineOf returns the engine of that name.
func EngineOf(name string) (Engine, error) {
	if e, ok := engines[name]; ok {
		return e, nil
	}
	return nil, fmt.Errorf("engine %q: unknown; known are: %s", name,
		strings.Join(slices.Sorted(maps.Keys(engines)), ", "))
}
