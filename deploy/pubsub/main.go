// A Pub/Sub for tests: Google's own in-memory server, on a port of its choice, which it prints.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	server := pstest.NewServer()
	fmt.Println(server.Addr)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	_ = server.Close()
}
