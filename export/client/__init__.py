"""A client of TensorFlow Serving, by REST and by gRPC.

It imports neither TensorFlow nor Keras. REST needs nothing but Python; gRPC needs the packages
grpcio, protobuf and numpy.
"""
