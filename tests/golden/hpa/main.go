// Writes golden vectors of the HorizontalPodAutoscaler to standard output; see generate.sh.
package main

import (
	"os"

	"golden/podautoscaler"
)

func main() {
	podautoscaler.WriteVectors(os.Stdout, os.Args[1])
}
