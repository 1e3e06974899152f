// The checker of histories of conditional writes; see main.go.
module towline.dev/integration/linearizability

go 1.26.0

require github.com/anishathalye/porcupine v1.3.1
