// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
)

// forward forwards every connection of the inherited listener to the address. A socket stays in the network namespace
// that created it, so the listener is on the host's 127.0.0.1 and the address is the machine's. This needs no link
// between the two, and ends with the machine.
func forward(fd uintptr, address string) error {
	file := os.NewFile(fd, "listener")
	defer file.Close() // FileListener has its own copy
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("take over listener: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				log.Printf("accept connection: %v", err)
				return
			}
			go relay(conn, address)
		}
	}()
	return nil
}

func relay(outside net.Conn, address string) {
	defer outside.Close()
	inside, err := net.Dial("tcp", address)
	if err != nil {
		return // the client gets a closed connection, as from a server that is down
	}
	defer inside.Close()
	done := make(chan struct{}, 2)
	go copyHalf(inside, outside, done)
	go copyHalf(outside, inside, done)
	<-done
	<-done
}

// copyHalf copies one direction and forwards its end.
func copyHalf(to, from net.Conn, done chan<- struct{}) {
	_, err := io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite()
	} else {
		_ = to.Close()
		_ = from.Close()
	}
	done <- struct{}{}
}
